#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Include directions between rooms: arrows go down only. Also: who may see cuda.h, nng, protobuf and generated code.
# INV-14, VIEW-1: consumers (client, ops) see KV through views; allocator and ownership live in rooms that they cannot include.
# Usage: test_rooms.sh SOURCE_DIR
set -u
cd "$1" || exit 2
bad=0
complain() { echo "$1"; bad=$((bad + 1)); }

room_of() { # file -> room
    case $1 in
        kvd/*/*) echo "$1" | cut -d/ -f1,2 ;;
        client/*) echo client ;;
        *) echo "${1%%/*}" ;;
    esac
}
allowed() { # room -> rooms that it may include from
    case $1 in
        cuda) echo "cuda" ;;
        hostarena) echo "hostarena cuda" ;;
        proto) echo "proto" ;;
        kvd/store) echo "kvd/store hostarena cuda" ;;
        kvd) echo "kvd kvd/base proto" ;; # the face of the service
        kvd/base) echo "kvd/base proto cuda" ;;
        kvd/memory) echo "kvd/memory $(allowed kvd/base) kvd/store hostarena" ;;
        kvd/cold) echo "kvd/cold $(allowed kvd/memory)" ;;
        kvd/service) echo "kvd/service kvd $(allowed kvd/cold)" ;;
        kvd/work) echo "kvd/work $(allowed kvd/service)" ;;
        kvd/serve) echo "kvd/serve $(allowed kvd/work)" ;;
        kvd/net) echo "kvd/net kvd/serve kvd kvd/base proto" ;;
        kvd/start) echo "kvd/start kvd/net kvd kvd/base kvd/memory proto hostarena cuda" ;;
        client) echo "client proto cuda" ;;
    esac
}

headers=$(find cuda hostarena proto kvd client -name '*.h' -o -name '*.cuh')
files=$(find cuda hostarena proto kvd client -name '*.[ch]' -o -name '*.cu' -o -name '*.cuh' -o -name '*.cpp' | sort)
[ -n "$files" ] || { echo "no sources found"; exit 2; }
checked=0
for file in $files; do
    room=$(room_of "$file")
    may=" $(allowed "$room") "
    for header in $(sed -nE 's/^[[:space:]]*#[[:space:]]*include[[:space:]]+"([^"]+)".*/\1/p' "$file"); do
        base=${header##*/}
        case $base in *.pb-c.h)
            case $file in proto/codec*) ;; *) complain "$file includes generated $base; only proto/codec* may" ;; esac
            continue ;;
        esac
        found=
        for other in $headers; do case $other in */"$base") found=$other; break ;; esac; done
        [ -n "$found" ] || { complain "$file includes \"$header\", which no room has"; continue; }
        from=$(room_of "$found")
        checked=$((checked + 1))
        [ "$room/$base" = kvd/store/kvd_types.h ] && continue # the store answers with the public types
        case $may in *" $from "*) ;; *) complain "$file ($room) includes $base of $from; $room may see:$may" ;; esac
    done
    for header in $(sed -nE 's/^[[:space:]]*#[[:space:]]*include[[:space:]]+<([^>]+)>.*/\1/p' "$file"); do
        case $header in
            cuda*.h|cublas*.h|mma.h) case $room in cuda) ;; client) case $file in client/demo/*) ;; *) complain "$file sees <$header>" ;; esac ;; *) complain "$file sees <$header>; only cuda/ may" ;; esac ;;
            nng/*) case $room in kvd/net|client) ;; *) complain "$file sees <$header>; only kvd/net/ and client/ may" ;; esac ;;
            hiredis/*) case $file in kvd/cold/*) ;; *) complain "$file sees <$header>; only kvd/cold/ may" ;; esac ;;
            microhttpd.h) [ "$file" = kvd/net/http.c ] || complain "$file sees <$header>; only kvd/net/http.c may" ;;
            protobuf-c/*) case $file in proto/codec*) ;; *) complain "$file sees <$header>; only proto/codec* may" ;; esac ;;
            time.h|stdio.h|sys/*|unistd.h|pthread.h|fcntl.h) case $file in kvd/store/*.[ch]) [ "$header" = stdio.h ] || complain "$file sees <$header>: the store has no clock, file or thread" ;; esac ;;
        esac
    done
done
# The store allocates nothing after init and asks nobody.
grep -HnE '\b(malloc|calloc|realloc|free|fopen|printf|getenv|clock_gettime)[[:space:]]*\(' kvd/store/*.[ch] 2>/dev/null |
    grep -vE '^[^:]*:[0-9]+:[[:space:]]*(/\*|\*)' && complain "kvd/store calls the outside"
# The public header shows no transport, serialisation or CUDA type.
grep -nE 'nng_|ProtobufC|cuda_runtime|CUdeviceptr' client/kvd.h proto/kvd_types.h cuda/paged_view.h cuda/kvd_ops.h && complain "a public header shows a private type"
echo "$checked includes checked, $bad wrong"
[ "$bad" -eq 0 ]

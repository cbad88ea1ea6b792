#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# libkvd-ops as it is installed: headers alone in C11 and C++17, a consumer by pkg-config and one by find_package, both
# without libkvd, Python by dlopen, exported symbols, dependencies.
# Usage: test_ops_package.sh BUILD_DIR SOURCE_DIR LIBDIR
set -eu
build=$1 source=$2 libdir=$3
stage=$(mktemp -d)
trap 'rm -rf "$stage"' EXIT
fail() { echo "FAIL: $*" >&2; exit 1; }

cmake --install "$build" --component libkvd-ops --prefix "$stage" >"$stage/install.log" ||
    { cat "$stage/install.log"; fail "installation"; }
for file in include/kvd/kvd_ops.h include/kvd/paged_view.h "$libdir/libkvd-ops.so" "$libdir/libkvd-ops.so.1" \
            "$libdir/pkgconfig/kvd-ops.pc" "$libdir/cmake/kvd-ops/kvd-opsConfig.cmake"; do
    [ -e "$stage/$file" ] || fail "$file is not installed"
done

echo "#include <kvd/kvd_ops.h>" >"$stage/alone.c"
cp "$stage/alone.c" "$stage/alone.cc"
cc -std=c11 -Wall -Wextra -Wpedantic -Werror -fsyntax-only -I"$stage/include" "$stage/alone.c" || fail "header as C11"
c++ -std=c++17 -Wall -Wextra -Wpedantic -Werror -fsyntax-only -I"$stage/include" "$stage/alone.cc" || fail "header as C++17"
if grep -nE '#include.*cuda' "$stage"/include/kvd/*.h; then fail "a header includes what an engine need not have"; fi

PKG_CONFIG_PATH="$stage/$libdir/pkgconfig"
export PKG_CONFIG_PATH
flags=$(pkg-config --cflags --libs kvd-ops) || fail "pkg-config"
version=$(pkg-config --modversion kvd-ops)
# shellcheck disable=SC2086 # flags are words
cc -std=c11 -o "$stage/by-pkg-config" "$source/tests/unit/consumer_ops/main.c" $flags || fail "consumer by pkg-config"
said=$(LD_LIBRARY_PATH="$stage/$libdir" "$stage/by-pkg-config") || fail "consumer by pkg-config: $said"
[ "$said" = "$version good" ] || fail "consumer by pkg-config says $said"

if ! cmake -S "$source/tests/unit/consumer_ops" -B "$stage/build" -DCMAKE_PREFIX_PATH="$stage" >"$stage/cmake.log" 2>&1 ||
    ! cmake --build "$stage/build" >>"$stage/cmake.log" 2>&1; then
    cat "$stage/cmake.log"
    fail "consumer by find_package"
fi
LD_LIBRARY_PATH="$stage/$libdir" "$stage/build/consumer" >/dev/null || fail "consumer by find_package runs"

if command -v python3 >/dev/null; then
    said=$(python3 -c 'import ctypes, sys
library = ctypes.CDLL(sys.argv[1])
library.kvd_ops_version.restype = ctypes.c_char_p
print(library.kvd_ops_version().decode())' "$stage/$libdir/libkvd-ops.so.1") || fail "dlopen from Python"
    [ "$said" = "$version" ] || fail "dlopen from Python says $said"
fi

# Exactly the functions that the header declares, each with the version, and the package's list of them.
tr '\n' ' ' <"$stage/include/kvd/kvd_ops.h" | grep -oE 'KVD_OPS_API [^(;]*\(' | grep -oE 'kvd_ops_[a-z_]+\($' | tr -d '(' |
    sed 's/$/@@KVD_OPS_1.0/' | sort >"$stage/declared"
nm -D --defined-only "$stage/$libdir/libkvd-ops.so" | awk '$2 != "A" { print $3 }' | sort >"$stage/exported"
diff "$stage/declared" "$stage/exported" || fail "exported symbols differ from kvd_ops.h"
[ "$(wc -l <"$stage/declared")" -ge 7 ] || fail "the header's functions were not found"
sed -n 's/^ \(kvd_ops_[a-z_]*@KVD_OPS_1.0\) .*/\1/p' "$source/deploy/debian/libkvd-ops1.symbols" | sed 's/@/@@/' | sort |
    diff "$stage/declared" - || fail "libkvd-ops1.symbols differs from kvd_ops.h"
readelf -d "$stage/$libdir/libkvd-ops.so" | grep -q 'SONAME.*libkvd-ops\.so\.1' || fail "soname"
if readelf -d "$stage/$libdir/libkvd-ops.so" | grep -iE 'NEEDED.*(cuda|nvidia|sodium)'; then fail "it needs more than it says"; fi
echo "libkvd-ops installs, and consumers build"

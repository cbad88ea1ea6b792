#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# libkvd as it is installed: headers alone in C11 and C++17, a consumer by pkg-config and one by find_package,
# exported symbols, dependencies.
# Usage: test_client_package.sh BUILD_DIR SOURCE_DIR LIBDIR
set -eu
build=$1 source=$2 libdir=$3
stage=$(mktemp -d)
trap 'rm -rf "$stage"' EXIT
fail() { echo "FAIL: $*" >&2; exit 1; }

cmake --install "$build" --component libkvd --prefix "$stage" >"$stage/install.log" ||
    { cat "$stage/install.log"; fail "installation"; }
for file in include/kvd/kvd.h include/kvd/kvd_policy.h include/kvd/kvd_types.h include/kvd/paged_view.h "$libdir/libkvd.so" \
            "$libdir/libkvd.so.1" "$libdir/pkgconfig/kvd.pc" "$libdir/cmake/kvd/kvdConfig.cmake"; do
    [ -e "$stage/$file" ] || fail "$file is not installed"
done

for header in kvd.h kvd_policy.h kvd_types.h paged_view.h; do
    echo "#include <kvd/$header>" >"$stage/alone.c"
    cp "$stage/alone.c" "$stage/alone.cc"
    cc -std=c11 -Wall -Wextra -Wpedantic -Werror -fsyntax-only -I"$stage/include" "$stage/alone.c" ||
        fail "$header alone as C11"
    c++ -std=c++17 -Wall -Wextra -Wpedantic -Werror -fsyntax-only -I"$stage/include" "$stage/alone.cc" ||
        fail "$header alone as C++17"
done
if grep -nE '#include.*(nng|protobuf|cuda)' "$stage"/include/kvd/*.h; then
    fail "a header includes what an engine need not have"
fi

PKG_CONFIG_PATH="$stage/$libdir/pkgconfig"
export PKG_CONFIG_PATH
flags=$(pkg-config --cflags --libs kvd) || fail "pkg-config"
# shellcheck disable=SC2086 # flags are words
cc -std=c11 -o "$stage/by-pkg-config" "$source/tests/unit/consumer/main.c" $flags || fail "consumer by pkg-config"
[ "$(LD_LIBRARY_PATH="$stage/$libdir" "$stage/by-pkg-config")" = "$(pkg-config --modversion kvd) UNAVAILABLE" ] ||
    fail "consumer by pkg-config runs"

if ! cmake -S "$source/tests/unit/consumer" -B "$stage/build" -DCMAKE_PREFIX_PATH="$stage" >"$stage/cmake.log" 2>&1 ||
    ! cmake --build "$stage/build" >>"$stage/cmake.log" 2>&1; then
    cat "$stage/cmake.log"
    fail "consumer by find_package"
fi
LD_LIBRARY_PATH="$stage/$libdir" "$stage/build/consumer" >/dev/null || fail "consumer by find_package runs"

# Exactly the functions that the header declares, each with the version.
sed -n 's/^KVD_API [^(]*[ *]\(kvd_[a-z_]*\)(.*/\1@@KVD_1.0/p' "$stage/include/kvd/kvd.h" "$stage/include/kvd/kvd_policy.h" | sort >"$stage/declared"
nm -D --defined-only "$stage/$libdir/libkvd.so" | awk '$2 != "A" { print $3 }' | sort >"$stage/exported"
diff "$stage/declared" "$stage/exported" || fail "exported symbols differ from kvd.h"
[ "$(wc -l <"$stage/declared")" -gt 40 ] || fail "the header's functions were not found"
readelf -d "$stage/$libdir/libkvd.so" | grep -q 'SONAME.*libkvd\.so\.1' || fail "soname"
readelf -d "$stage/$libdir/libkvd.so" | grep -q 'FLAGS_1.*NODELETE' || fail "a host could unload libkvd under its threads"
if readelf -d "$stage/$libdir/libkvd.so" | grep -iE 'NEEDED.*(cuda|nvidia)'; then fail "libkvd needs CUDA to load"; fi
echo "libkvd installs, and consumers build"

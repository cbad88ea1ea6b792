# shellcheck shell=sh
# SPDX-License-Identifier: Apache-2.0
# Read by run.sh: a root file system with the packages that every Debian has, an init, and what some .deb files depend on,
# out of the packages that this machine has installed. Nothing is fetched.

# Names of packages: those that must be there, those given, and what all of them need. Exit: 1 something is not installed.
bare_packages() {
    # shellcheck disable=SC2016 # dpkg's
    dpkg-query -W -f '${db:Status-Abbrev}|${Package}|${Essential}|${Priority}|${Pre-Depends}, ${Depends}|${Provides}\n' |
        awk -F'|' -v OFS='|' 'sub(/^ii *\|/, "")' >"$work/installed"
    awk -v roots="$*" '
        # Fields after the fourth may have | in them: alternatives. Provides has none, and comes last.
        { n = split($0, f, "|"); name = f[1]; needs = f[4]
          for (i = 5; i < n; i++) needs = needs "|" f[i]
          there[name] = 1; wants[name] = needs
          if (f[2] == "yes" || f[3] == "required") list[++found] = name
          m = split(f[n], p, ","); for (i = 1; i <= m; i++) provider[bare(p[i])] = name }
        function bare(text) { sub(/\(.*/, "", text); sub(/:.*/, "", text); gsub(/[ \t]/, "", text); return text }
        function chosen(clause, a, k, i, word) {
            k = split(clause, a, "|")
            for (i = 1; i <= k; i++) if ((word = bare(a[i])) in there) return word
            for (i = 1; i <= k; i++) if ((word = bare(a[i])) in provider) return provider[word]
            return ""
        }
        END {
            m = split(roots, r, ",")
            for (i = 1; i <= m; i++) {
                if (bare(r[i]) == "") continue
                if ((word = chosen(r[i])) == "") { print "not installed: " r[i] >"/dev/stderr"; exit 1 }
                list[++found] = word
            }
            for (at = 1; at <= found; at++) {
                if (list[at] in taken) continue
                taken[list[at]] = 1
                print list[at]
                m = split(wants[list[at]], r, ",")
                for (i = 1; i <= m; i++) if ((word = chosen(r[i])) != "" && !(word in taken)) list[++found] = word
            }
        }' "$work/installed" | sort
}

# Files of packages as they are installed here, and dpkg's own record of them. $1: an empty folder; $2: names.
bare_files() {
    root=$1
    for folder in bin lib sbin lib32 lib64 libx32; do
        [ ! -L /$folder ] || { mkdir -p "$root/usr/$folder" && ln -s usr/$folder "$root/$folder"; }
    done
    xargs dpkg-query -L <"$2" | grep '^/.' | while IFS= read -r path; do
        if [ -L "$path" ] || [ -e "$path" ]; then echo "${path#/}"; fi
    done | sort -u >"$work/files"
    # What no package lists, and its scripts make.
    for path in etc/alternatives etc/pam.d etc/nsswitch.conf etc/passwd etc/group etc/shadow etc/gshadow etc/ld.so.conf.d; do
        find "/$path" | cut -c2-
    done >>"$work/files"
    find /usr/bin /usr/sbin -lname '/etc/alternatives/*' | cut -c2- >>"$work/files"
    tar -C / --no-recursion --verbatim-files-from -T "$work/files" -cf - | tar -C "$root" --keep-directory-symlink -xpf -
    mkdir -p "$root/var/lib/dpkg/info" "$root/var/lib/dpkg/updates" "$root/var/lib/dpkg/triggers"
    cp /var/lib/dpkg/info/format "$root/var/lib/dpkg/info"
    awk -v RS= -v ORS='\n\n' 'NR == FNR { n = split($0, name, "\n"); for (i = 1; i <= n; i++) wanted[name[i]] = 1; next }
        { split($0, line, "\n"); sub("Package: ", "", line[1]) } line[1] in wanted' "$2" /var/lib/dpkg/status \
        >"$root/var/lib/dpkg/status"
    while IFS= read -r name; do
        for file in /var/lib/dpkg/info/"$name".* /var/lib/dpkg/info/"$name":*.*; do
            [ ! -e "$file" ] || cp "$file" "$root/var/lib/dpkg/info"
        done
    done <"$2"
    sed -i '/^kvd/d' "$root"/etc/passwd "$root"/etc/group "$root"/etc/shadow "$root"/etc/gshadow
    tr -d - </proc/sys/kernel/random/uuid >"$root/etc/machine-id"
    chroot "$root" ldconfig
}

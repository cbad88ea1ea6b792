#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Breaks the store in one place at a time and shows that the model of the two tiers sees it. Not a part of the suite: it compiles the store once a mutant.
# Usage: sh tests/model/mutants.sh BUILD-DIRECTORY [MUTANT...]     Exit: 0 all were caught, 1 one lives, 2 it could not be made.
set -u
top=$(cd "$(dirname "$0")/../.." && pwd)
build=${1:?the build directory, for its libraries}
shift
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
flags="-std=c17 -D_GNU_SOURCE -DKVD_CRASH_POINTS -O1 -I$top/kvd/store -I$top/cuda -I$top/hostarena -I$top/tests/support"
lived=0

# The test itself, once.
for file in "$top"/tests/model/tier_*.c "$top"/tests/model/test_model_tier.c; do
    cc $flags -c "$file" -o "$work/$(basename "$file" .c).test.o" || exit 2
done
mkdir "$work/store"

# name, file, sed expression
mutant() {
    name=$1 file=$2 change=$3
    if [ -n "$only" ]; then case " $only " in *" $name "*) ;; *) return ;; esac; fi
    cp "$top"/kvd/store/*.[ch] "$work/store/"
    sed -e "$change" "$top/kvd/store/$file" >"$work/store/$file"
    if cmp -s "$top/kvd/store/$file" "$work/store/$file"; then
        echo "$name: changes nothing; the store has been rewritten there"
        exit 2
    fi
    (cd "$work/store" && cc -std=c17 -D_GNU_SOURCE -DKVD_CRASH_POINTS -O1 -I. -I"$top/cuda" -I"$top/hostarena" -c ./*.c) || exit 2
    cc "$work"/*.test.o "$work"/store/*.o "$build/hostarena/libkvd_hostarena_crash.a" "$build/cuda/libkvd_geometry.a" "$build/tests/libkvt.a" \
        -lcunit -lxxhash -lpthread -lrt -lm -o "$work/mutant" || exit 2
    for run in 1 2 3 4 5; do
        if ! timeout 120 "$work/mutant" >"$work/log" 2>&1; then
            echo "$name: caught: $(grep -m1 -a -E 'WRONG' "$work/log" | cut -c1-150)"
            break
        fi
        [ $run -lt 5 ] || { echo "$name: LIVES"; lived=1; }
    done
    rm -f "$work"/store/*
}
only=$*

mutant publish_before_copied tier.c 's/if (!ok || !told || page->references == 0/if (page->references == 0/'
mutant publish_other_epoch tier.c 's/ || page->host_epoch != page->epoch) {/) {/; s/if (page->host.bits \&\& /&/'
mutant hidden_destination_is_readable store_internal.h 's/return page->device != NONE \&\& !(page->flags \& PAGE_RESTORING);/return page->device != NONE;/'
mutant only_source_is_dropped move.c 's/!page_on_device(page)) continue;/false) continue;/; s/if (absent) return refuse(refusal, STORE_E_STATE, STORE_S_REPLICA, NONE, 0, absent, 0);//'
mutant demoted_source_is_dropped move.c 's/if (store->pool\[p\].tier\[run\[k\]\].demoted || store->pool\[p\].tier\[run\[k\]\].demoting) continue;//'
mutant demoting_source_is_dropped move.c 's/ || store->pool\[p\].tier\[run\[k\]\].demoting) continue;/) continue;/'
mutant rests_uncopied move.c 's/if (lacks) return refuse(refusal, STORE_E_STATE, STORE_S_REPLICA, NONE, 0, lacks, 0);//; s/STORE_PLACE_HOST \&\& tier_all_current(store, cont)) cont_demote/STORE_PLACE_HOST) cont_demote/'
mutant directory_keeps_host page.c 's/    record_page_host(store, pool_index, d);//'
mutant directory_keeps_device page.c 's/    record_page_device(store, (uint32_t)(pool - store->pool), d);//'
mutant directory_keeps_page page.c 's/    record_page_close(store, p, d);//'
mutant directory_keeps_continuation continuation.c 's|    record_cont_drop(store, cont); /\* deletions go first \*/||'
mutant directory_keeps_consumed activate.c 's|    source->published = false; /\* nothing writes its record again \*/||'
mutant directory_keeps_handed_slot activate.c 's|    record_cont(store, victim); /\* its slot may have gone \*/||'
mutant directory_late_truncation round.c 's/    if (shortens) /    if (false) /'
mutant directory_knows_arriving_image record.c 's/ || cont->image_coming ? DIRECTORY_NONE/ ? DIRECTORY_NONE/'
mutant bytes_before_record page.c 's/^    tier_give_back(store, id);//; s/^    record_page_host(store, pool_index, d);/    tier_give_back(store, id); record_page_host(store, pool_index, d);/'
mutant owed_page_reused activate.c 's/if (act->n_victims || act->move) set_leaving(store, seq, act);//'
mutant owed_page_is_prefetched move.c 's/PAGE_LEAVING))/0))/'
mutant source_counts_as_freed activation.c 's/if (act->source \&\& act->source->demoted) mark_source(store, act, p);//'
mutant jointly_held_counts_once activation.c 's/            page->mark++;/            page->mark = page->references;/'
mutant extents_of_a_mover_at_begin activation.c 's/act->stamp, false, false}/act->stamp, true, false}/'
mutant restore_out_of_thin_air activation.c 's/ap->fresh = ap->entitlement - ap->taken + ap->restore;/ap->fresh = ap->entitlement - ap->taken;/'
mutant demotes_twice activation.c 's/if (page->stamp == stamp || page_is_current(page)) continue;/if (page_is_current(page)) continue;/'
mutant restored_page_is_forgotten activate.c 's/    if (pool->absent) job_copy_in(store, \&seq->job, p, \&source->space\[p\], seq->taken\[p\]);//'
mutant waits_for_nobody activate.c 's/return more ? STORE_MORE : waits ? STORE_WAIT : STORE_OK;/return more ? STORE_MORE : STORE_OK;/'
mutant orphan_is_forgotten activate.c 's/more |= job_adopt(store, \&seq->job, p, space, seq->taken\[p\]);//'
mutant lost_page_is_taken activate.c 's/if (tier_any(store, p, space, pages_of(seq->frontier), PAGE_LOST))/if (false)/'
mutant damage_keeps_holders copies.c 's/if (lost) page->flags |= PAGE_LOST;//'
mutant scrub_frees_what_it_reads page.c 's/if (id.bits == store->scrub_extent.bits) store->scrub_gone = true;/if (false) store->scrub_gone = true;/'
mutant pinned_page_is_trimmed round.c 's/store->moves_used == 0) return count;/true) return count;/'
mutant image_taken_before_it_is_there activation.c 's/(act->source->slot == NONE || act->source->image_coming)/act->source->slot == NONE/'
mutant recovery_takes_all_columns recover.c 's/page_in_host(page, columns)) return false;/page->host.bits) return false;/'
mutant recovery_keeps_stale_device recover.c 's/            directory_page_device(r->directory, p, d, page->device == NONE ? DIRECTORY_NONE : page->device);//'
exit $lived

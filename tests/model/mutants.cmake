# SPDX-License-Identifier: Apache-2.0
# Faults that are put into the store on purpose (kvd/store/mutant.h), each a test that fails if nothing sees it.
get_target_property(store_files kvd_store SOURCES)
list(TRANSFORM store_files PREPEND ${CMAKE_SOURCE_DIR}/kvd/store/ REGEX "^[^/]")
add_library(kvd_store_mutants STATIC ${store_files} mutant.c)
target_include_directories(kvd_store_mutants PUBLIC ${CMAKE_SOURCE_DIR}/kvd/store ${CMAKE_SOURCE_DIR}/proto)
target_compile_definitions(kvd_store_mutants PUBLIC KVD_MUTANTS KVD_CRASH_POINTS)
target_link_libraries(kvd_store_mutants PUBLIC kvd_geometry kvd_hostarena_crash PRIVATE kvd_flags)

add_executable(mutant_model_tier test_model_tier.c tier_world.c tier_look.c tier_plan.c tier_ops.c tier_places.c
               tier_recover.c tier_fetch.c)
target_link_libraries(mutant_model_tier PRIVATE kvt kvd_flags kvd_store_mutants PkgConfig::XXHASH)

foreach(name tier flight space rules checkpoint shorten victims equal find lives live choose import lent read fetch window roll)
  add_executable(mutant_store_${name} ${CMAKE_SOURCE_DIR}/tests/unit/test_store_${name}.c
                 ${CMAKE_SOURCE_DIR}/tests/unit/store_fixture.c)
  target_include_directories(mutant_store_${name} PRIVATE ${CMAKE_SOURCE_DIR}/tests/unit)
  target_link_libraries(mutant_store_${name} PRIVATE kvt kvd_flags kvd_store_mutants)
endforeach()

# The same of the service.
add_library(mutant_service_fixture STATIC ${CMAKE_SOURCE_DIR}/tests/unit/service_fixture.c)
target_include_directories(mutant_service_fixture PUBLIC ${CMAKE_SOURCE_DIR}/tests/unit)
target_link_libraries(mutant_service_fixture PUBLIC kvd_service_mutants kvt PRIVATE kvd_flags)
foreach(name boards death former ranks session stop victims host)
  add_executable(mutant_service_${name} ${CMAKE_SOURCE_DIR}/tests/unit/test_service_${name}.c)
  target_link_libraries(mutant_service_${name} PRIVATE mutant_service_fixture kvd_flags)
endforeach()

# kvd_mutants(PROGRAM [ARGUMENTS ...] NAMES ...): a check of PROGRAM fails on a store with the fault: most within a second of two quiet cores,
# all within half a minute. The limit is for a machine that does other work.
function(kvd_mutants program)
  cmake_parse_arguments(M "" "" "ARGUMENTS;NAMES" ${ARGN})
  foreach(name ${M_NAMES})
    add_test(NAME mutant_${name} COMMAND sh ${CMAKE_CURRENT_SOURCE_DIR}/mutant.sh ${name} 240
                                         $<TARGET_FILE:${program}> ${M_ARGUMENTS})
    set_tests_properties(mutant_${name} PROPERTIES LABELS mutant TIMEOUT 900)
  endforeach()
  set(kvd_mutant_names ${kvd_mutant_names} ${M_NAMES} PARENT_SCOPE)
endfunction()

# Any scenario of the model sees these within seconds.
kvd_mutants(mutant_model_tier NAMES
            bytes_before_record changes_pass_unseen cut_replica_is_taken_over damage_keeps_holders demotes_twice directory_keeps_continuation directory_keeps_device
            directory_keeps_host directory_keeps_page directory_late_truncation
            hidden_destination_is_readable jointly_held_counts_once lost_page_is_taken only_source_is_dropped
            publish_before_copied publish_other_epoch recovery_keeps_stale_device recovery_forgets_domain
            recovery_takes_all_columns demoted_source_is_dropped restore_out_of_thin_air restored_page_is_forgotten
            demoted_uncopied demotion_is_not_told going_is_not_told scrub_frees_what_it_reads source_counts_as_freed
            use_is_not_told waits_for_nobody)
# And these are seen soon where what they take is scarce.
kvd_mutants(mutant_model_tier ARGUMENTS -c tier_tight_state NAMES
            directory_keeps_consumed directory_keeps_handed_slot directory_knows_arriving_image
            image_taken_before_it_is_there)
kvd_mutants(mutant_model_tier ARGUMENTS -c tier_starved NAMES
            demoting_source_is_dropped)
# A unit test sees these at once, the model hardly ever.
kvd_mutants(mutant_store_tier NAMES abort_forgets_demoted damaged_tail_is_taken pinned_page_is_trimmed
            drop_under_a_fork extents_of_a_mover_at_begin image_without_checksum publish_columns_that_are_not_there publish_uncovered
            row_beside_its_copies)
kvd_mutants(mutant_store_flight ARGUMENTS drop_beside_a_promise NAMES leaving_page_is_prefetched leaving_page_reused)
kvd_mutants(mutant_store_flight ARGUMENTS act_5_orphans_of_an_aborted_neighbour_are_brought NAMES orphan_is_forgotten)
kvd_mutants(mutant_store_read NAMES reader_frees_what_another_reads)
kvd_mutants(mutant_store_fetch NAMES fetched_behind_a_window fetched_behind_damage fetched_twice_stays_twice
            fetched_without_bytes)
kvd_mutants(mutant_store_space NAMES growth_takes_any_membership next_window_comes_late)
kvd_mutants(mutant_store_lives NAMES move_is_no_end)
kvd_mutants(mutant_store_equal NAMES equal_ones_stay equal_of_any_owner)
kvd_mutants(mutant_store_checkpoint NAMES descriptor_is_not_reserved)
kvd_mutants(mutant_store_shorten NAMES cut_replica_covers_all damage_takes_all shortened_name_stays)
kvd_mutants(mutant_store_victims NAMES growth_asks_the_list_first growth_takes_what_is_claimed last_victim_goes_whole
            shortened_victim_goes_whole useless_victim_goes victims_of_a_checkpoint_give_nothing)
kvd_mutants(mutant_store_rules NAMES audit_passes_shared_tails)

kvd_mutants(mutant_store_find NAMES any_domain_is_found digests_in_part equal_hits_by_frontier source_of_any_domain
            tail_ends_are_unordered)
kvd_mutants(mutant_store_live NAMES
            forks_in_flight_are_cut live_one_is_cut live_one_is_of_main live_one_is_taken live_one_outlasts_its_names
            nothing_is_live)
kvd_mutants(mutant_store_choose NAMES choice_is_not_the_shortest useless_victims_stay)
kvd_mutants(mutant_store_import NAMES
            import_reads_past_the_arena import_remembers_what_went import_shares_tails import_takes_short_replicas)
kvd_mutants(mutant_model_tier ARGUMENTS -c tier NAMES recovery_keeps_the_nameless)
kvd_mutants(mutant_store_lent NAMES complete_page_is_named_again lent_page_is_unprotected needed_page_is_overwritten
            page_grows_under_a_copy page_without_a_chain_keeps_its_name written_columns_change written_page_is_shared)
kvd_mutants(mutant_store_window NAMES
            fork_behind_a_window offered_behind_a_window passed_page_is_nobodys shallower_tail_is_not_asked_for
            shared_window_is_not_replaced torn_sequence_is_recorded victims_stay_in_the_window
            window_is_short)
kvd_mutants(mutant_store_roll NAMES
            boundary_is_passed_by last_found_one_goes one_rolling_too_many rolling_image_is_of_elsewhere rolling_newest_goes rolling_one_is_cut_into
            rolling_one_is_found_unnamed rolling_one_protects rolling_one_stays_its_own
            unnamed_one_outlives_its_sequence)

kvd_mutants(mutant_service_death ARGUMENTS row_5_nobody_finishes_under_a_running_unit NAMES unit_freezes_nothing)
kvd_mutants(mutant_service_host ARGUMENTS act_9_a_cancel_of_what_waits NAMES cancel_waits_for_its_turn)
kvd_mutants(mutant_service_boards NAMES ending_sequence_stays_on_its_board round_overtakes_its_board wishes_of_any_turn)
kvd_mutants(mutant_service_victims NAMES growth_list_is_lost)
kvd_mutants(mutant_service_former NAMES goodbye_leaves_its_record start_time_is_ignored)
kvd_mutants(mutant_service_ranks NAMES batches_of_rank_0_alone moves_of_rank_0_alone)
kvd_mutants(mutant_service_session ARGUMENTS a_group_has_every_rank_once_and_any_member_breaks_it NAMES
            leader_alone_breaks_a_group rank_twice_in_a_group)
kvd_mutants(mutant_service_session ARGUMENTS srv_3_root_and_the_daemons_own_user NAMES root_is_a_stranger)
kvd_mutants(mutant_service_stop ARGUMENTS keep_2_the_most_valuable_survive NAMES
            arena_keeps_the_coldest newest_goes_first retention_is_ignored)

# The names in the code and the names here are the same: none is forgotten, none is misspelt.
add_test(NAME test_mutants_listed COMMAND sh ${CMAKE_CURRENT_SOURCE_DIR}/mutants_listed.sh
                                          ${CMAKE_SOURCE_DIR}/kvd ${kvd_mutant_names})
set_tests_properties(test_mutants_listed PROPERTIES LABELS unit TIMEOUT 300)

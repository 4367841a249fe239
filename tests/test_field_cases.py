"""Where the known failures of other systems are tested: case -> test, or table row."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
GRADING = "docs/grading.md"  # every row of it is run by tests/reward/test_reward_docs.py
FIELD = "tests/reward/test_reward_field.py"

CASES = {
    "R03 a hung verification blocks the pool": (
        "tests/reward/test_reward_pool.py",
        "test_normal_answers_are_graded_after",
    ),
    "R04 a power tower hangs the parser": ("tests/reward/test_reward_pool.py", "test_hostile_answers_end_in_time"),
    "R05 memory grows until the machine dies": ("tests/reward/test_reward_pool.py", "test_hostile_answers_end_in_time"),
    "R08 one of two answers is accepted": (GRADING, r"| `1331 and 1728` | `\boxed{1728}` | wrong |"),
    "R11 the order of gold and answer": ("tests/reward/test_reward_graders.py", "test_the_reference_comes_first"),
    "R12 two boxes": (GRADING, r"| `7` | `\boxed{3} wait, actually \boxed{7}` | correct |"),
    "R13 a bold final answer": (FIELD, "test_a_bold_final_answer"),
    "R14 equations that end in = 0": (GRADING, r"| `3x-y+13=0` | `\boxed{3x+4y+14=0}` | wrong |"),
    "R15 sqrt(1/n) and f(x) = 0": (GRADING, r"| `f(x)=0` | `\boxed{\forall x>0, f(x)=0}` | wrong |"),
    "R16 a prefix that parses": (GRADING, r"| `4` | `\boxed{4\sqrt(2)}` | wrong |"),
    "R18 leading zeros": (GRADING, r"| `10` | `\boxed{010}` | correct |"),
    "R19 a long remark after the answer, a long answer": (FIELD, "test_a_long_remark_and_a_long_box"),
    "R21 no think tags": (FIELD, "test_no_tags_around_a_box"),
    "R21 batches without reward are warned of": (
        "tests/reward/test_reward_pool.py",
        "test_a_run_that_begins_without_a_right_answer_is_warned_of",
    ),
    "R21 and end a run that samples dynamically": (
        "tests/loop/test_loop_with_fakes.py",
        "test_prompts_that_are_never_solved_end_the_run",
    ),
    "R22 several ###Response and </think>": (FIELD, "test_several_responses_and_ends_of_thought"),
    "R23 fbox, no braces, nested boxes": (GRADING, r"| `42` | `\fbox{42}` | correct |"),
    "R24 broken boxes": (FIELD, "test_broken_boxes"),
    "R28 golds of the evaluation in training": (
        "tests/loop/test_loop_evaluation.py",
        "test_training_keeps_its_own_answers_around_an_evaluation",
    ),
    "R29 golds that are no strings": ("tests/data/test_sources.py", "test_golds_of_any_type_are_text"),
    "R30 percent": (GRADING, r"| `$28\%$` | `\boxed{0.28}` | correct |"),
    "R31 Unicode mathematics": (GRADING, "| `12` | `\\boxed{１２}` | correct |"),
    "R32 lost samples": ("tests/rollout/test_rollout_postprocess.py", "test_failures_to_grade_are_masked_out"),
    "D01 every prompt a hundred times": ("tests/data/test_sources.py", "test_many_copies_are_counted_and_one_is_kept"),
    "D01 in evaluation": ("tests/eval/test_runner.py", "test_copies_of_a_problem_are_one_problem"),
    "D02 a prompt too long": ("tests/data/test_prompts.py", "test_a_prompt_too_long_is_left_out_and_counted"),
    "D03 the length filter is in one place": ("tests/data/test_one_length_filter.py", "test_one_filter_for_every_path"),
    "D04 the filter keeps the order": ("tests/data/test_prompts.py", "test_order_is_kept"),
    "D07 untidy jsonl files": ("tests/data/test_sources.py", "test_an_untidy_jsonl_file"),
    "D07 order of a resumable writer": (
        "tests/eval/test_record.py",
        "test_an_interrupted_evaluation_goes_on_and_ends_as_an_uninterrupted_one",
    ),
    "S01 nothing but degenerate groups": ("tests/rollout/test_rollout_collector.py", "test_a_step_gives_up_after_the"),
    "S01 the run ends with a checkpoint": ("tests/e2e/test_e2e_variants.py", "test_data_that_is_too_hard_ends_the_run"),
    "S02 steps and epochs": ("tests/loop/test_loop_with_fakes.py", "test_steps_count_updates_and_epochs_count_prompts"),
    "S02 the rate of a step": ("tests/learner/test_learner_schedule.py", "test_the_rate_depends_on_the_step_alone"),
    "S03 the batch is refilled": ("tests/rollout/test_rollout_postprocess.py", "test_the_batch_is_refilled_up_to_its"),
    "S04 one loser": ("tests/rollout/test_rollout_postprocess.py", "test_one_loser_among_winners_is_kept_whole"),
    "S06 each sample once": ("tests/pack/test_pack_packer.py", "test_every_sample_contributes_exactly_once"),
    "S06 the same on any ranks": ("tests/pack/test_pack_packer.py", "test_the_gradient_is_the_same_for_every_split"),
    "S08 groups of another shape": ("tests/rollout/test_rollout_collector.py", "test_a_group_of_the_wrong_size"),
    "A01 within a group": (
        "tests/rollout/test_rollout_postprocess.py",
        "test_advantages_are_normalised_within_a_group",
    ),
    "A02 one loser among equals": ("tests/algo/test_algo_advantage.py", "test_one_loser_among_equals"),
    "A02 equal rewards": ("tests/algo/test_algo_advantage.py", "test_equal_rewards_give_exactly_zero"),
    # There is no KL term in the loss, so a group without signal has no gradient at all.
    "A04 a group without signal": ("tests/pack/test_pack_packer.py", "test_a_group_without_signal_counts_in_the"),
    "A07 dual clip": ("tests/algo/test_algo_losses.py", "test_dual_clip_bounds_negative_advantages_only"),
    "A07 its bound": ("tests/algo/test_algo_losses.py", "test_dual_clip_below_one_is_refused"),
    "A08 on and off": ("tests/algo/test_algo_overlong.py", "test_switch"),
    "A08 in training": (
        "tests/rollout/test_rollout_postprocess.py",
        "test_p_hat_is_taken_from_outcomes_and_shaping_added_afterwards",
    ),
    "A08 not in evaluation": ("tests/loop/test_loop_evaluation.py", "test_an_evaluation_knows_no_overlong_penalty"),
    "A09 its edges": ("tests/algo/test_algo_overlong.py", "test_equation_8"),
    "A09 no slope": ("tests/algo/test_algo_overlong.py", "test_no_cache_switches_the_slope_off"),
    "A09 the filter comes first": ("tests/rollout/test_rollout_postprocess.py", "test_all_correct_is_dropped_whatever"),
    "A10 no division by zero": ("tests/pack/test_pack_packer.py", "test_empty_responses_do_not_divide_by_zero"),
    "A10 counted as wrong": ("tests/rollout/test_rollout_postprocess.py", "test_empty_responses_are_wrong_counted"),
    "A10 weights stay": ("tests/learner/test_learner_layouts.py", "test_nothing_but_empty_responses_teach_nothing"),
    "A11 skipped, and then the end": (
        "tests/learner/test_learner_layouts.py",
        "test_non_finite_gradients_are_skipped_and",
    ),
    "A11 no checkpoint": ("tests/learner/test_learner_layouts.py", "test_a_weight_that_is_no_number_is_never_saved"),
    # No token is ever added to what the engine sampled.
    "A12 ids and log-probs": (
        "tests/rollout/test_rollout_postprocess.py",
        "test_batch_carries_what_the_engine_sampled",
    ),
    "A13 its micro-batches": ("tests/pack/test_pack_plan.py", "test_one_long_sequence_against_many_short_ones"),
    "A13 its gradient": ("tests/pack/test_pack_packer.py", "test_a_long_sequence_beside_short_ones_on_two_ranks"),
    "A13 on real ranks": ("tests/learner/test_learner_matrix.py", "test_every_budget_equals_the_single_process"),
    "L01 by hand": ("tests/learner/test_learner_logprobs.py", "test_temperature_divides_logits_not_log_probs"),
    "L01 in vLLM": ("tests/engine/test_engine_vllm.py", "test_logprobs_are_those_of_the_processed_distribution"),
    "L01 end to end": ("tests/e2e/test_e2e_train.py", "test_engine_and_learner_agree_before_and_after_every_update"),
    "L03 generation_config": ("tests/engine/test_engine_vllm.py", "test_generation_config_is_not_obeyed"),
    "L04 no dropout": ("tests/learner/test_learner_layouts.py", "test_two_forward_passes_are_equal_bit_for_bit"),
    "L04 L10 as transformers": ("tests/learner/test_learner_layouts.py", "test_logprobs_equal_transformers"),
    "L06 the sampled ids": ("tests/rollout/test_rollout_postprocess.py", "test_batch_carries_what_the_engine_sampled"),
    "L06 no missing log-probs": (
        "tests/pack/test_pack_packer.py",
        "test_samples_that_cannot_be_trained_on_are_refused",
    ),
    "L09 every stop id": ("tests/engine/test_engine_vllm.py", "test_every_stop_id_of_the_model_stops_and_is_kept"),
    "L09 ignore_eos": ("tests/engine/test_engine_vllm.py", "test_ignore_eos_goes_on_to_max_tokens_past_either"),
    "L10 gradients": ("tests/learner/test_learner_matrix.py", "test_every_layout_equals_the_single_process"),
    "L10 padding is never counted": ("tests/learner/test_learner_logprobs.py", "test_tiles_and_padding_change_nothing"),
    "P02 log-probs under sequence parallelism": (
        "tests/learner/test_learner_layouts.py",
        "test_logprobs_equal_the_single_process",
    ),
    "P02 padding has no loss": ("tests/pack/test_pack_tensors.py", "test_padding_to_a_multiple"),
    "P05 bit for bit": ("tests/learner/test_learner_layouts.py", "test_tied_embedding_and_head_stay_equal_bit_for_bit"),
    "P05 as without stages": (
        "tests/learner/test_learner_layouts.py",
        "test_weights_after_three_steps_equal_the_single_process",
    ),
    "H02 a tied head on the last stage": (
        "tests/models/test_models_families.py",
        "test_the_last_stage_of_a_tied_model_fills_its_copy_from_the_embedding",
    ),
    "H02 through pipeline stages": (
        "tests/convert/test_convert_layouts.py",
        "test_a_model_goes_through_a_layout_unchanged_and_is_exported_as_it_was_trained",
    ),
    "H03 padding of the vocabulary": (
        "tests/convert/test_convert_layouts.py",
        "test_a_model_goes_through_a_layout_unchanged_and_is_exported_as_it_was_trained",
    ),
    "H03 rows and config": (
        "tests/convert/test_convert_command.py",
        "test_every_family_and_shape_comes_back_byte_for_byte",
    ),
    "H05 heads wider than hidden / heads": (
        "tests/convert/test_convert_command.py",
        "test_every_family_and_shape_comes_back_byte_for_byte",
    ),
    "H05 their log-probs": (
        "tests/convert/test_convert_layouts.py",
        "test_a_model_goes_through_a_layout_unchanged_and_is_exported_as_it_was_trained",
    ),
    "H06 layers of later stages": (
        "tests/models/test_models_families.py",
        "test_stages_own_every_tensor_once_and_number_layers_from_the_start_of_the_model",
    ),
    "H06 through pipeline stages": (
        "tests/convert/test_convert_layouts.py",
        "test_a_model_goes_through_a_layout_unchanged_and_is_exported_as_it_was_trained",
    ),
    "H06 in weight sync": ("tests/learner/test_learner_layouts.py", "test_published_weights_arrive_whole"),
    "H07 rope_theta in both dialects": ("tests/convert/test_convert_companions.py", "test_either_dialect_becomes_both"),
    "H07 far positions": ("tests/learner/test_learner_layouts.py", "test_logprobs_equal_transformers"),
    "H08 the factor of llama3": ("tests/convert/test_convert_companions.py", "test_transformers_reads_both_dialects"),
    "H08 other rope types": ("tests/convert/test_convert_companions.py", "test_other_rope_types_are_refused_by_name"),
    "H09 files beside the weights": (
        "tests/convert/test_convert_companions.py",
        "test_every_file_but_weights_and_reports_is_kept_byte_for_byte",
    ),
    "H09 the engine stops": (
        "tests/convert/test_convert_layouts.py",
        "test_the_engine_stops_at_every_end_of_sequence_of_an_exported_model",
    ),
    "G02 a field without its option": (
        "tests/config/test_config_documented.py",
        "test_every_option_takes_its_own_default_without_a_plus",
    ),
    "G02 defaults stated twice": ("tests/config/test_config_load.py", "test_yaml_only_holds_differences_from_the_da"),
    "G02 documents name what does not exist": (
        "tests/config/test_config_documented.py",
        "test_documents_name_options_that_exist",
    ),
    "G03 a learning rate that is text": ("tests/plan/test_plan_state.py", "test_a_learning_rate_of_the_command_line"),
    "G03 numbers in every spelling, from a file": (
        "tests/config/test_config_documented.py",
        "test_numbers_of_a_file_are_numbers",
    ),
    "G03 numbers in every spelling": ("tests/config/test_config_load.py", "test_numbers_in_every_spelling"),
    "G03 what is no number": ("tests/config/test_config_load.py", "test_a_wrong_override_is_refused_and_says_why"),
    "G03 underscores": ("tests/config/test_config_load.py", "test_underscores_in_whole_numbers_are_grouping"),
    "G04 a mistyped option": (
        "tests/config/test_config_documented.py",
        "test_a_mistyped_option_ends_the_command_before_ray_starts",
    ),
    "G04 the same option twice": ("tests/config/test_config_load.py", "test_the_last_of_two_equal_overrides_wins"),
    # A job's time is sbatch's own option: there is no option of ours that YAML could turn into a number of seconds.
    "G05 a time that YAML takes for a number": (
        "tests/config/test_config_documented.py",
        "test_what_reads_as_a_time_or_a_number_stays_text",
    ),
    "C01 the learning rate after a resume": (
        "tests/checkpoint/test_checkpoint_learner.py",
        "test_stopped_after_every_step_a_run_ends_bit_for_bit_the_same",
    ),
    "C01 with dynamic sampling": (
        "tests/checkpoint/test_checkpoint_resume.py",
        "test_stopped_at_every_step_one_after_another",
    ),
    "C02 nothing is advanced twice": (
        "tests/checkpoint/test_checkpoint_learner.py",
        "test_stopped_after_every_step_a_run_ends_bit_for_bit_the_same",
    ),
    "C03 weights alone": ("tests/checkpoint/test_checkpoint_learner.py", "test_weights_alone_begin_a_new_run"),
    "C05 the order of the data": (
        "tests/data/test_cursor.py",
        "test_a_resumed_cursor_draws_what_an_uninterrupted_one_would",
    ),
    "C05 epochs and seeds": ("tests/data/test_cursor.py", "test_an_epoch_has_every_prompt_once_and_a_new_order"),
    "C06 what was drawn ahead": (
        "tests/checkpoint/test_checkpoint_resume.py",
        "test_batches_collected_ahead_and_groups_carried_over",
    ),
    "C08 killed while it saves": (
        "tests/checkpoint/test_checkpoint_signals.py",
        "test_a_run_that_is_killed_at_any_write_ends_as_if_it_had_not_been",
    ),
    "C08 half a checkpoint": (
        "tests/checkpoint/test_checkpoint_directory.py",
        "test_an_incomplete_checkpoint_is_passed_over_and_named",
    ),
    "C09 room for one and a half": (
        "tests/checkpoint/test_checkpoint_learner.py",
        "test_a_disk_with_room_for_one_and_a_half_checkpoints",
    ),
    "C10 parts of two steps": ("tests/checkpoint/test_checkpoint_directory.py", "test_parts_of_two_steps_are_no_step"),
    "C11 names as numbers": ("tests/checkpoint/test_checkpoint_directory.py", "test_steps_are_ordered_as_numbers"),
    "C11 what keep=2 deletes": ("tests/checkpoint/test_checkpoint_directory.py", "test_the_newest_are_kept"),
    "C14 another data-parallel size": (
        "tests/checkpoint/test_checkpoint_resume.py",
        "test_another_data_parallel_size_draws_the_same_prompts",
    ),
    "C14 with the real learner": (
        "tests/checkpoint/test_checkpoint_learner.py",
        "test_saved_on_four_ranks_and_resumed_on_other_layouts",
    ),
    "C15 in any phase": ("tests/checkpoint/test_checkpoint_resume.py", "test_stopped_in_any_phase_of_any_step"),
    "C15 a second signal": (
        "tests/checkpoint/test_checkpoint_signals.py",
        "test_a_second_signal_ends_the_process_at_once",
    ),
    "C15 the grace time": ("tests/checkpoint/test_checkpoint_signals.py", "test_when_the_grace_time_is_over"),
    "C15 a signal to every process": (
        "tests/e2e/test_e2e_resume.py",
        "test_a_signal_to_the_whole_group_ends_in_a_step_that_was_not_due",
    ),
    "C17 the same command twice": (
        "tests/e2e/test_e2e_train.py",
        "test_a_killed_run_started_again_goes_on_as_if_nothing_had_been",
    ),
    "C17 another experiment in the same place": (
        "tests/e2e/test_e2e_train.py",
        "test_another_algorithm_is_refused_in_the_directory_of_a_run",
    ),
    "W02 a control call that does nothing": (
        "tests/engine/test_engine_control.py",
        "test_a_control_call_that_answers_stops_the_engine",
    ),
    "W02 a prefix cache that stays": (
        "tests/engine/test_engine_control.py",
        "test_a_prefix_cache_that_was_not_dropped_stops_the_engine",
    ),
    "W03 the sender dies half-way": (
        "tests/sync/test_sync_channel.py",
        "test_a_sender_that_dies_or_hangs_half_way_ends_the_receiver_in_time",
    ),
    "W03 never from half of the weights": (
        "tests/engine/test_engine_vllm.py",
        "test_a_source_that_fails_half_way_never_leads_to_a_sample_from_mixed_weights",
    ),
    "W03 the sync is done again": (
        "tests/engine/test_engine_half_way.py",
        "test_killed_at_ten_places_and_never_a_sample_from_mixed_weights",
    ),
    "W03 one version before each rollout": (
        "tests/engine/test_engine_pool.py",
        "test_weights_that_were_not_confirmed_are_not_generated_from",
    ),
    "W04 every tensor after each of three syncs": (
        "tests/learner/test_learner_layouts.py",
        "test_published_weights_arrive_whole",
    ),
    # There is one transport: weights that come from disk come with a fresh engine.
    "W05 every parameter after each of three syncs": (
        "tests/engine/test_engine_vllm.py",
        "test_three_updates_each_equal_transformers_with_the_new_weights",
    ),
    "W07 bucket sizes": ("tests/engine/test_engine_vllm.py", "test_the_bucket_size_changes_nothing"),
    "W08 all ranks take part in the gather": (
        "tests/learner/test_learner_layouts.py",
        "test_published_weights_arrive_whole",
    ),
    "W08 one rank's exception ends all": (
        "tests/cluster/test_cluster_workers.py",
        "test_the_first_failure_ends_the_wait_for_peers_that_hang",
    ),
    # The samples of a resumed run are those of one that never stopped, and so are its log-probs.
    "W09 the engines hold the checkpoint's weights": (
        "tests/e2e/test_e2e_train.py",
        "test_a_killed_run_started_again_goes_on_as_if_nothing_had_been",
    ),
    "E01 four engines at once among taken ports": (
        "tests/engine/test_engine_ports.py",
        "test_four_engines_start_at_once_among_taken_ports",
    ),
    "E02 stale variables": ("tests/engine/test_engine_vllm.py", "test_its_ports_are_not_privileged"),
    "E02 ports": ("tests/engine/test_engine_vllm.py", "test_its_ports_are_not_privileged"),
    "E05 normal end": ("tests/e2e/test_e2e_train.py", "test_nothing_is_left_running"),
    "E05 kill -9 and SIGTERM": (
        "tests/e2e/test_e2e_train.py",
        "test_a_killed_run_started_again_goes_on_as_if_nothing_had_been",
    ),
    "E05 Ctrl-C": ("tests/e2e/test_e2e_train.py", "test_an_interrupted_start_leaves_nothing"),
    "E06 an engine dies in a rollout": (
        "tests/engine/test_engine_faults.py",
        "test_what_a_dead_engine_owes_goes_to_the_others_once",
    ),
    "E06 the replacement's weights": (
        "tests/engine/test_engine_faults.py",
        "test_a_replacement_gets_the_present_weights_before_it_is_asked_for_anything",
    ),
    "E06 with real engines": (
        "tests/e2e/test_e2e_chaos.py",
        "test_every_trained_prompt_has_all_its_samples_once_and_of_the_right_weights",
    ),
    "V01 pass@k is no bootstrap": ("tests/eval/test_statistics.py", "test_pass_at_k"),
    "V02 n < k": ("tests/eval/test_statistics.py", "test_pass_at_k_of_too_few_samples_is_refused"),
    "G05 time limits": ("tests/slurm/test_slurm_jobs.py", "test_time_limits_mean_what_slurm_means_by_them"),
    "Y02 Ray dies behind its success": ("tests/cluster/test_cluster_node.py", "test_ray_that_dies_behind_its_success"),
    "Y02 a taken port under Slurm": ("tests/slurm/test_slurm_jobs.py", "test_a_port_that_is_taken_ends_the_job"),
    "Y03 the job's cores": ("tests/cluster/test_cluster_node.py", "test_ray_gets_the_jobs_cores_and_not_the_nodes"),
    "Y03 needs X, has Y": ("tests/cluster/test_cluster_placement.py", "test_needs_and_has"),
    "Y04 one routable IPv4": ("tests/cluster/test_cluster_network.py", "test_one_routable_ipv4"),
    "Y07 failures have exit codes": ("tests/e2e/test_e2e_failures.py", "test_a_failure_of_any_part_is_the_commands"),
    "Y07 those of a batch job": ("tests/slurm/test_slurm_jobs.py", "test_the_jobs_exit_code_is_the_runs"),
    "Y08 the usual ports are taken": (
        "tests/cluster/test_cluster_node.py",
        "test_a_command_runs_on_its_own_ray_while_the_usual_ports_are_taken",
    ),
    "Y08 on one machine": ("tests/cluster/test_cluster_workers.py", "test_calls_environment_and_log"),
    "V04 equal samples, settings of its own": ("tests/eval/test_runner.py", "test_requests_carry_the_evaluations_own"),
    "O01 truncated means cut by the engine": (
        "tests/rollout/test_rollout_postprocess.py",
        "test_truncated_means_that_the_engine_cut",
    ),
    # There is no wandb sink, so nothing can drop a repeated step; docs/checkpoints.md says so.
    "O03 one final value for each step": (
        "tests/runtime/test_runtime_jsonl.py",
        "test_resume_leaves_one_final_value_a_step",
    ),
    "O03 TensorBoard": (
        "tests/runtime/test_runtime_sinks.py",
        "test_tensorboard_after_a_resume_shows_each_step_once",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_the_case_is_tested(case: str) -> None:
    """By a test of that name, or for one that goes on after it; or by a row of the table, as a line of its own."""
    file, needle = CASES[case]
    text = (ROOT / file).read_text(encoding="utf-8")
    if file == GRADING:
        assert needle in text.splitlines()
    else:
        assert re.search(rf"^ *(?:async )?def {re.escape(needle)}", text, re.MULTILINE), needle
        assert needle.startswith("test_")

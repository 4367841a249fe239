"""Overrides: what is taken, what is refused, and how the refusal reads."""

import dataclasses
import re
import subprocess
import sys
from pathlib import Path

import pytest

from da3po.config.build import leaves, to_tree
from da3po.config.load import conf_dir, dump, load, parse_yaml
from da3po.config.rules import EVALUATION, PLANNING, TRAINING, check, problems
from da3po.config.schema import Config, ConfigError

EXPERIMENTS = sorted(path.stem for path in (conf_dir() / "experiment").glob("*.yaml"))
PACKAGE = Path(__file__).parents[2] / "da3po"


@pytest.mark.parametrize("experiment", EXPERIMENTS)
def test_every_experiment_composes(experiment):
    config = load([f"experiment={experiment}"])
    assert config.run.name == experiment
    assert config.algo.name == "da3po" and config.algo.daa.kind == "constant"


def test_the_paper_experiments_hold_the_papers_numbers():
    for size in ("4b", "8b"):
        config = load([f"experiment=da3po-qwen3_{size}_base-1n8g"])
        assert (config.rollout.num_samples, config.rollout.num_prompts) == (16, 512)
        assert (config.data.max_prompt_tokens, config.rollout.max_tokens) == (2048, 4096)
        assert (config.optim.lr, config.train.steps) == (1e-6, 200)
        assert (config.algo.daa.lambda_, config.algo.daa.tau) == (2.0, 0.5)
        assert (config.eval.temperature, config.eval.top_p, config.eval.num_samples) == (1.0, 0.95, 32)
        assert config.parallel.num_ranks + config.engine.num_engines * config.engine.tp == 8


@pytest.mark.parametrize(
    ("algo", "expected"),
    [
        ("grpo", ("token", 0.2, 0.2, "sequence_mean", False, False, "off")),
        ("dapo", ("token", 0.2, 0.28, "token_mean", True, True, "off")),
        ("da3po", ("token", 0.2, 0.28, "token_mean", True, True, "constant")),
        ("gspo", ("sequence", 3e-4, 4e-4, "sequence_mean", False, False, "off")),
    ],
)
def test_an_algorithm_is_one_override(algo, expected):
    parts = load(["experiment=quickstart", f"algo={algo}"]).algo
    loss = parts.loss
    assert parts.name == algo
    assert expected == (
        loss.ratio,
        loss.clip_low,
        loss.clip_high,
        loss.aggregation,
        parts.dynamic_sampling.enabled,
        parts.overlong.enabled,
        parts.daa.kind,
    )


def test_daa_composes_with_any_algorithm():
    parts = load(["algo=gspo", "algo/daa=constant", "algo.daa.lambda=1.5"]).algo
    assert (parts.name, parts.daa.kind, parts.daa.lambda_) == ("gspo", "constant", 1.5)


@pytest.mark.parametrize(
    ("override", "says"),
    [
        ("algo.lamda=2", "algo.daa.lambda"),
        ("train.learning_rate=3e-6", "optim.lr"),
        ("rollout.N=4", "rollout.num_samples"),
        ("train=5", "train.steps"),
        ("algo=5", "algo.name"),
        ("algo=dapoo", "did you mean algo=dapo?"),
        ("parallel=tp3", "did you mean parallel=tp"),
        ("experiment=nothing", "quickstart"),
        ("experiment=quikstart", "did you mean experiment=quickstart?"),
        ("algo/daa=of", "did you mean algo/daa=off?"),
        ("model=nothing", "neither a directory nor one of"),
        ("rollout.num_samples=abc", "whole number"),
        ("rollout.num_samples='16'", "whole number"),
        ("rollout.num_samples=010", "whole number"),
        ("rollout.num_samples=2.5", "whole number"),
        ("rollout.num_samples=true", "whole number"),
        ("rollout.num_samples=1", "rollout.num_samples must be >= 2"),
        ("rollout.temperature=2.5", "rollout.temperature must lie in (0, 2], vLLM's limit, got 2.5"),
        ("rollout.temperature=0", "rollout.temperature must lie in"),
        ("eval.temperature=3", "eval.temperature must lie in [0, 2]"),
        ("optim.lr=fast", "must be a number"),
        ("optim.lr=nan", "optim.lr must be positive"),
        ("data.shuffle=yes", "true or false"),
        ("data.template=chatty", "must be one of problem, answer_line, dapo, chat, messages"),
        ("algo.loss.dual_clip=0.5", "algo.loss.dual_clip must be > 1"),
        ("algo.daa.lambda=0.5", "algo.daa.lambda must be >= 1"),
        ("run.dir=", "run.dir must be a non-empty string"),
        ("train.steps={a: 1}", "single value"),
        ("+foo=1", "no option 'foo'"),
        ("++train.steps=1", "write train.steps=1"),
        ("~algo", "form key=value"),
        ("rollout.max_tokens=1,2", "rollout.max_tokens"),
        ("learner.megatron.transformer=full", "is a section, not a value"),
        ("learner.megatron.transformers.x=1", "did you mean 'learner.megatron.transformer'"),
        ("learner.megatron.transformer.a.b=1", "no option 'learner.megatron.transformer.a.b'"),
        ("learner.megatron.transformer.a={b: 1}", "learner.megatron.transformer.a must be a single value or a list"),
        ("parallel.vpp=2", "parallel.vpp=2 needs parallel.pp > 1"),
        ("parallel.first_stage_layers=2", "parallel.first_stage_layers=2 needs parallel.pp > 1"),
    ],
)
def test_a_wrong_override_is_refused_and_says_why(override, says):
    with pytest.raises(ConfigError, match=re.escape(says)):
        load([override])


@pytest.mark.parametrize(("text", "value"), [("1e-6", 1e-6), ("1E-6", 1e-6), ("2e-4", 2e-4), (".2", 0.2), ("1", 1.0)])
def test_numbers_in_every_spelling(text, value, tmp_path):
    config = load([f"optim.lr={text}"])
    assert config.optim.lr == value and isinstance(config.optim.lr, float)
    assert parse_yaml(dump(config)).optim.lr == value


def test_fields_of_megatron_come_through_with_their_types():
    prefix = "learner.megatron.transformer."
    config = load(
        [f"{prefix}recompute_granularity=full", f"{prefix}recompute_modules=[core_attn, mlp]", f"{prefix}x=1"]
    )
    fields = config.learner.megatron.transformer
    assert fields == {"recompute_granularity": "full", "recompute_modules": ["core_attn", "mlp"], "x": 1}
    assert parse_yaml(dump(config)) == config
    assert load([]).learner.megatron.transformer == {}


def test_underscores_in_whole_numbers_are_grouping():
    assert load(["rollout.max_tokens=1_000", "eval.max_tokens=10"]).rollout.max_tokens == 1000


def test_the_last_of_two_equal_overrides_wins():
    assert load(["train.steps=1", "train.steps=2"]).train.steps == 2


@pytest.mark.parametrize(
    "path", ["/a b/c=1,x(2).parquet", "it's.jsonl", "[x].jsonl", "a\\b", "null", "12", "ü.parquet"]
)
def test_paths_come_through_as_they_are(path):
    assert load([f"data.train={path}"]).data.train == path


def test_model_takes_a_directory(tmp_path):
    assert load([f"model={tmp_path}"]).model.path == str(tmp_path)


def test_the_run_directory_follows_the_name():
    assert load(["run.name=trial"]).run.dir == "runs/trial"
    assert load(["run.name=trial", "run.dir=here"]).run.dir == "here"


def test_a_dumped_config_reads_back_as_itself():
    config = load(["experiment=quickstart", "algo=gspo", "algo.loss.dual_clip=3"])
    assert parse_yaml(dump(config)) == config


def test_yaml_only_holds_differences_from_the_dataclasses():
    """An empty override list gives the schema's defaults, but for what the default groups choose."""
    tree, defaults = to_tree(load([])), to_tree(Config())
    tree["algo"]["daa"]["kind"] = defaults["algo"]["daa"]["kind"]
    tree["run"]["dir"] = defaults["run"]["dir"]
    assert tree == defaults


def test_every_option_is_read_somewhere():
    readers = [path for path in PACKAGE.rglob("*.py") if path.parent.name != "schema" and path.name != "rules.py"]
    code = "\n".join(path.read_text() for path in readers)
    unread = [
        key for key in leaves() if not re.search(rf"\.{re.escape(_attribute(key))}\b", code) and key != "algo.name"
    ]
    assert not unread


def _attribute(key):
    last = key.rpartition(".")[2]
    return {"lambda": "lambda_"}.get(last, last)


def test_every_section_documents_its_options():
    for section in _section_types(Config):
        assert section.__doc__ and not section.__doc__.startswith(f"{section.__name__}(")


def _section_types(section):
    yield section
    for field in dataclasses.fields(section):
        default = field.default_factory
        if dataclasses.is_dataclass(default):
            yield from _section_types(default)


@pytest.mark.parametrize(
    ("overrides", "says"),
    [
        (["algo=gspo", "algo.loss.clip_high=0.28"], "sequence ratio needs a far smaller clip"),
        (["rollout.top_p=0.9"], "use eval.top_p"),
        (["train.prompts_per_update=7"], "8 does"),
        (["rollout.max_tokens=100"], "algo.overlong.cache=1024 is longer than rollout.max_tokens=100"),
        (["algo.dynamic_sampling.min_graded=20"], "rollout.num_samples=16"),
        (
            ["algo.dynamic_sampling.max_surplus_age=2", "rollout.max_lag=2"],
            "algo.dynamic_sampling.max_surplus_age=2 is not above rollout.max_lag=2",
        ),
        (["engine.max_model_len=100"], "engine.max_model_len=100 is less than"),
        (["optim.schedule=cosine", "optim.warmup_steps=200"], "leaves nothing"),
        (["checkpoint.best=eval/avg@8", "eval.every=0", "eval.after=false"], "nothing is evaluated"),
        (
            ["checkpoint.best=eval/avg@8", "eval.num_samples=4"],
            "checkpoint.best=eval/avg@8 is not evaluated with eval.num_samples=4; eval/avg@4 is",
        ),
        (["data.train=missing.parquet"], "data.train=missing.parquet: there is no such file"),
        (["data.eval=missing.parquet"], "data.eval=missing.parquet: there is no such file"),
    ],
)
def test_rules_between_sections(overrides, says):
    with pytest.raises(ConfigError, match=re.escape(says)):
        check(load(overrides), TRAINING)


@pytest.mark.parametrize(("age", "lag"), [(0, 0), (0, 2), (1, 0), (2, 1)])
def test_surplus_that_can_be_used_is_no_broken_rule(age, lag):
    overrides = [f"algo.dynamic_sampling.max_surplus_age={age}", f"rollout.max_lag={lag}"]
    assert problems(load(overrides), PLANNING) == []


def test_all_broken_rules_are_reported_at_once():
    with pytest.raises(ConfigError) as error:
        check(load(["rollout.top_p=0.9", "data.train=missing.parquet"]), TRAINING)
    assert "top_p" in str(error.value) and "missing.parquet" in str(error.value)


def test_evaluation_does_not_ask_for_training_data():
    check(load(["data.train=missing.parquet"]), EVALUATION)


def test_a_wrong_command_line_is_refused_before_anything_heavy_is_imported():
    script = (
        "import sys\nfrom da3po.config.load import load\nfrom da3po.config.rules import check\n"
        "load(['experiment=quickstart'])\n"
        "heavy = {'torch', 'ray', 'vllm', 'megatron', 'transformers'} & set(sys.modules)\nassert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", script], check=True)

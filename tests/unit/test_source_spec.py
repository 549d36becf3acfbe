"""Resolving workload specifications: defaults, variants, messages."""

from __future__ import annotations

import pytest
import yaml

from scripts.common.errors import InputError
from scripts.source import document, spec

CONFIG = spec.validated_config({"workload": "mine"})
MINIMAL = {
    "name": "mine",
    "title": "Mine",
    "kind": "training",
    "source": {"path": "workloads/minigpt"},
    "launch": {"command": ["python", "train.py", "--seed", "{seed}"]},
}

THREADS = {"name": "OMP_NUM_THREADS", "kind": "env", "values": ["1", "2"]}


@pytest.fixture
def workload(tmp_path, monkeypatch):
    """Write a workload file into a folder of its own and resolve it."""
    folder = spec.ROOT / "workloads"
    monkeypatch.setattr(spec, "WORKLOADS", tmp_path)
    monkeypatch.setattr(spec, "_where", lambda path, variant=None: f"workloads/{path.name}")
    assert folder.is_dir()

    def write(document=None, **fields):
        content = {**(document or MINIMAL), **fields}
        (tmp_path / f"{content['name']}.yaml").write_text(yaml.safe_dump(content, sort_keys=False))
        return content["name"]

    return write


def test_defaults_are_filled_and_the_configuration_gives_the_rest(workload):
    resolved = spec.resolve(workload(), None, CONFIG)
    assert resolved["measure"]["alpha"] == 0.05
    assert resolved["launch"]["workdir"] == "."
    assert resolved["proposers"] == ["playbook"]
    assert resolved["llm"]["record"] is None  # replay in CI or without a key


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"lanch": {}}, "workloads/mine.yaml: unknown field 'lanch'; did you mean 'launch'?"),
        ({"measure": {"stepz": 3}}, "workloads/mine.yaml: measure: unknown field 'stepz'; did you mean 'steps'?"),
        ({"kind": "trainning"}, "did you mean 'training'?"),
        (
            {"source": {"path": "workloads/minigpt", "pypi": "a==1"}},
            "source: give exactly one of path, git, pypi (given: path, pypi)",
        ),
        ({"source": {"path": "no/such"}}, "source.path: no folder 'no/such'"),
        ({"launch": {}}, "launch: field 'command' is missing"),
        ({"launch": {"command": ["python", "{sed}"]}}, "launch.command: no value for {sed}; did you mean 'seed'?"),
        ({"parity": {"held_out_seeds": [0]}}, "holds the visible seed 0"),
        ({"parity": {"repeats": 1, "perturbed": 1}}, "is below 3"),
        ({"profile": {"steps": [9, 4]}}, "profile.steps: [9, 4] is not a window"),
        ({"environment": {"kind": "venv"}}, "environment.requirements: is missing"),
        ({"proposers": ["file:a/x.diff", "file:b/x.diff"]}, "share the folder name"),
        ({"knobs": [THREADS]}, "knobs_file: is missing"),
        ({"knobs_file": "knobs.json"}, "knobs: is missing"),
        ({"knobs": [THREADS], "knobs_file": "knobs.json"}, "'knobs.json' is not editable; add it to source.editable"),
        ({"knobs": [THREADS, THREADS], "knobs_file": "knobs.py"}, "'OMP_NUM_THREADS' is declared twice"),
        (
            {
                "knobs": [THREADS],
                "knobs_file": "knobs.py",
                "environment": {"variables": {"OMP_NUM_THREADS": "1"}},
            },
            "environment.variables: OMP_NUM_THREADS is a knob too",
        ),
    ],
)
def test_bad_fields_name_the_file_the_field_and_what_would_be_right(workload, fields, message):
    with pytest.raises(InputError) as caught:
        spec.resolve(workload(**fields), None, CONFIG)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_field_given_twice_is_refused(workload, tmp_path):
    name = workload()
    path = tmp_path / f"{name}.yaml"
    path.write_text(path.read_text() + "title: again\n")
    with pytest.raises(InputError, match="'title' is given twice"):
        spec.load(name)


def test_unknown_workload_lists_the_known_ones():
    with pytest.raises(InputError, match=r"no workloads/minigtp\.yaml; did you mean 'minigpt'\?; there are: .*minigpt"):
        spec.load("minigtp")


def test_variants_replace_fields_and_grids_give_one_workload_each(workload):
    name = workload(
        parameters={"px": 64},
        variants={
            "gpu": {"parameters": {"px": 640}},
            "size": {"grid": {"parameters.px": [32, 96], "measure.steps": [50, 60]}},
        },
    )
    assert spec.variants_of(spec.load(name)) == ["gpu", "size_32_50", "size_32_60", "size_96_50", "size_96_60"]
    chosen = spec.select({**CONFIG, "workload": name, "variant": "size"})
    assert sorted(chosen) == ["mine-size_32_50", "mine-size_32_60", "mine-size_96_50", "mine-size_96_60"]
    assert chosen["mine-size_96_60"]["parameters"]["px"] == 96
    assert chosen["mine-size_96_60"]["measure"]["steps"] == 60
    with pytest.raises(InputError, match="no variant 'gpv'; did you mean 'gpu'"):
        spec.select({**CONFIG, "workload": name, "variant": "gpv"})


def test_command_line_text_is_read_as_the_type_that_the_schema_wants(workload):
    config = spec.validated_config(
        {"workload": "mine", "rounds": "3", "set": {"measure.pairs": "24", "launch.timeout_s": "12.5"}}
    )
    resolved = spec.resolve(workload(), None, config)
    assert (resolved["rounds"], resolved["measure"]["pairs"], resolved["launch"]["timeout_s"]) == (3, 24, 12.5)


def test_config_misspelt_key_is_named():
    with pytest.raises(InputError, match="config: unknown field 'wrkload'; did you mean 'workload'"):
        spec.validated_config({"wrkload": "minigpt"})


def test_a_part_holds_only_what_its_rules_read(workload):
    resolved = spec.resolve(workload(), None, CONFIG)
    other = {**resolved, "title": "renamed", "measure": {**resolved["measure"], "pairs": 24}}
    assert spec.part(resolved, "job") == spec.part(other, "job")
    assert spec.part(resolved, "judge") != spec.part(other, "judge")
    assert spec.part(resolved, "job")["measure"] == {"steps": 50}


def test_every_shipped_workload_and_variant_resolves():
    config = spec.validated_config({"workload": spec.names(), "variant": None})
    for name in spec.names():
        for variant in [None, *spec.variants_of(spec.load(name))]:
            assert spec.resolve(name, variant, config)["name"] == name


def test_every_field_is_documented_and_the_pages_are_current():
    for path, schema in document.PAGES.items():
        rows = document.fields(document.load_schema(schema))
        assert [label for label, _, _, meaning in rows if not meaning and "proposers" not in label] == []
        text = path.read_text(encoding="utf-8")
        assert document.page(text, document.load_schema(schema), path.name) == text

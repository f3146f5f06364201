"""`shapekit set`, `unset`, `settings`, `apply`: limits for every process, on every store that has a URL."""

import json
import time

import pytest

from shapekit import ConfigError, Policy

from .screen import shapekit as process
from .test_control import done, shapekit


@pytest.fixture
def policy(place):
    """A policy that was used once, so that the store knows its program."""
    store, where = place
    policy = Policy("5/s", name="stripe", store=store, quota="1000/month")
    policy.shaper.reserve()
    yield policy
    for name in store.all_overrides():
        done("unset", name, "--all", "--store", where) if store.read_overrides(name).text else None


def read_json(place, *args):
    return json.loads(done(*args, "--store", place[1], "--json"))


def test_a_set_limit_applies_in_every_process(place, policy):
    ran = process("set", "stripe", "20/s", "--reason", "sale", "--by", "ann", "--store", place[1])
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "stripe: rate 20/s\n", "")
    *_, last_but_one, last = [policy.shaper.reserve().departs_at for _ in range(6)]
    assert last - last_but_one == pytest.approx(0.05, abs=1e-6)
    (one,) = policy.configured()
    assert (one.rate, one.by, one.reason) == ("20/s", "ann", "sale")
    assert done("unset", "stripe", "--store", place[1]) == "stripe: rate 20/s is removed\n"
    assert policy.configured() == []


def test_setting_a_limit_again_names_the_one_that_it_replaces(place, policy):
    done("set", "stripe", "9/s", "--key", "acme", "--store", place[1])
    done("set", "stripe", "20/s", "--store", place[1])
    again = done("set", "stripe", "--quota", "2000/month", "--store", place[1])
    assert again == "stripe: quota 2000/month, instead of rate 20/s\n"
    same = done("set", "stripe", "--quota", "2000/month", "--for", "2h", "--store", place[1])
    assert "instead of" not in same
    held = done("set", "stripe", "--hold", "--store", place[1])
    assert held.startswith("stripe: held, instead of quota 2000/month, until ")


@pytest.mark.long
@pytest.mark.parametrize("place", ["redis"], indirect=True)
def test_a_span_does_not_depend_on_the_operators_clock(place, policy, monkeypatch):
    now_ns = time.time_ns
    monkeypatch.setattr(time, "time_ns", lambda: now_ns() - 600 * 10**9)
    done("set", "stripe", "20/s", "--for", "5m", "--store", place[1])
    (one,) = read_json(place, "settings")
    assert one["until"] - one["set_at"] == pytest.approx(300, abs=0.01)
    monkeypatch.undo()
    *_, last_but_one, last = [policy.shaper.reserve().departs_at for _ in range(6)]
    assert last - last_but_one == pytest.approx(0.05, abs=1e-6)


def test_keys_and_spans(place, policy):
    assert done("set", "stripe", "50/s", "--key", "gold-*", "--for", "2h", "--store", place[1]).startswith(
        "stripe, key gold-*: rate 50/s, until "
    )
    done("set", "stripe", "--key", "acme", "--hold", "--store", place[1])
    done("set", "stripe", "--burst", 5, "--quota", "2_000/month", "--headroom", 0.1, "--store", place[1])
    done("set", "stripe", "--key", "free", "--off", "--store", place[1])
    seen = read_json(place, "settings", "stripe")
    assert [(one["key"], one["state"]) for one in seen] == [
        (None, "on"),
        ("acme", "held"),
        ("free", "off"),
        ("gold-*", "on"),
    ]
    assert seen[3]["until"] - seen[3]["set_at"] == pytest.approx(7_200, abs=0.01)
    page = done("settings", "--store", place[1])
    assert (seen[0]["burst"], seen[0]["quota"]) == (5, "2_000/month")
    assert "burst 5, quota" in page
    assert "gold-*" in page
    assert (
        done("unset", "stripe", "--key", "acme", "--store", place[1]) == "stripe, key acme: held is removed\n"
    )
    assert len(read_json(place, "unset", "stripe", "--all")) == 3
    assert done("settings", "--store", place[1]) == "nothing is set: the limits in the code apply\n"


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["set", "stripe", "x"], "rate='x' is not a rate"),
        (["set", "stripe"], "no limit is given; give a RATE such as 20/s"),
        (["set", "", "5/s"], "POLICY is empty"),
        (["set", "stripe", "--off", "--hold"], "--off and --hold are both given"),
        (["set", "stripe", "5/s", "--off"], "state='off' conflicts with rate"),
        (["set", "stripe", "--quota", "x"], "quota='x' is not a budget; write \"1_000_000/month\""),
        (["set", "stripe", "--quota", ""], "quota='' is not a budget; write \"1_000_000/month\""),
        (
            ["set", "stripe", "--quota", "5/fortnight"],
            "quota='5/fortnight' is not a period of a quota; use one of",
        ),
        (["set", "stripe", "--quota", "5/day"], "changes no quota, as the code has none with this period"),
        (["set", "stripe", "5/s", "--for", "soon"], "is not a duration"),
        (["unset", "stripe"], "nothing was set for 'stripe'"),
        (["unset", "stripe", "--key", "a"], "nothing was set for key 'a' of 'stripe'"),
        (["unset", "stripe", "--key", "a", "--all"], "--key and --all are both given"),
    ],
)
def test_invalid_settings_are_refused_and_not_stored(place, policy, args, words):
    ran = shapekit(*args, "--store", place[1])
    assert ran.returncode == 2
    assert words in ran.stderr
    assert policy.configured() == []


def test_permits_are_set_and_held_by_the_name_of_their_policy(place):
    with Policy(concurrency=1, name="api", store=place[0]).admit():
        ran = shapekit("set", "api.permits", "--concurrency", 5, "--store", place[1])
        assert (ran.returncode, ran.stdout) == (2, "")
        assert "'api.permits' has the permits of 'api'" in ran.stderr
        assert "write api --concurrency N" in ran.stderr
        ran = shapekit("hold", "api.permits:default", 5, "--store", place[1])
        assert ran.stderr == (
            "shapekit: key='api.permits:default' has the permits of 'api:default'; hold that key\n"
        )
    assert read_json(place, "settings") == []


def test_an_unused_name_can_be_set(place):
    ran = shapekit("set", "strype", "5/s", "--store", place[1])
    assert ran.returncode == 0
    assert "the store knows no limit named 'strype' yet" in ran.stderr
    assert read_json(place, "settings", "strype")[0]["rate"] == "5/s"
    done("unset", "strype", "--store", place[1])


def test_a_key_written_behind_the_name_is_answered_with_the_option(place, policy):
    ran = shapekit("set", "stripe:eu:acme", "5/s", "--store", place[1])
    assert "no limit named 'stripe:eu:acme' yet; write stripe --key eu:acme" in ran.stderr


def test_top_marks_keys_with_set_limits(place, policy):
    done("set", "stripe", "1/min", "--store", place[1])
    policy.shaper.reserve()
    assert "1/min; quota 1000/month, set by an operator" in json.dumps(read_json(place, "top", "--once"))
    done("set", "stripe", "--hold", "--store", place[1])
    policy.shaper.reserve()
    assert "held by an operator" in json.dumps(read_json(place, "top", "--once"))


def test_resume_does_not_end_a_set_hold(place, policy):
    done("set", "stripe", "--hold", "--by", "ann", "--store", place[1])
    policy.shaper.reserve()
    words = done("resume", "stripe:default", "--store", place[1])
    assert words == "stripe:default stays held, as ann has set: `shapekit unset` ends that\n"
    assert read_json(place, "resume", "stripe:default")["held"] > 86_400
    done("unset", "stripe", "--store", place[1])
    # Its next call will notice; until then the hold that it has left is an ordinary one.
    assert "calls leave again in" in done("resume", "stripe:default", "--store", place[1])


FILE = """
[stripe]
rate = "20/s"
reason = "sale"
until = 2100-01-01T00:00:00Z

[stripe.keys."gold-*"]
rate = "50/s"

[mail]
state = "off"
"""


def test_a_file_is_applied_after_it_was_shown(place, policy, tmp_path):
    file = tmp_path / "limits.toml"
    file.write_text(FILE)
    done("set", "stripe", "1/s", "--key", "old", "--store", place[1])
    ran = shapekit("apply", file, "--dry-run", "--store", place[1])
    assert ran.stdout.splitlines() == [
        "stripe: as in the code → rate 20/s",
        "stripe, key gold-*: as in the code → rate 50/s",
        "stripe, key old: rate 1/s → as in the code",
        "mail: as in the code → off",
        "nothing was set: --dry-run",
    ]
    assert [one.key for one in policy.configured()] == ["old"]
    shapekit("apply", file, "--by", "ann", "--store", place[1])
    assert [(one.key, one.rate, one.by) for one in policy.configured()] == [
        (None, "20/s", "ann"),
        ("gold-*", "50/s", "ann"),
    ]
    again = shapekit("apply", file, "--by", "bob", "--store", place[1])
    assert again.stdout == "nothing changes\n"
    file.write_text(FILE.replace("2100", "2101"))
    ran = shapekit("apply", file, "--dry-run", "--store", place[1])
    old, new = (f"rate 20/s, until Fri {year}-01-01 00:00:00 UTC, reason sale" for year in (2100, 2101))
    assert ran.stdout.splitlines()[0] == f"stripe: {old} → {new.replace('Fri', 'Sat')}"
    assert {one.by for one in policy.configured()} == {"ann"}
    done("unset", "mail", "--store", place[1])


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("rate = 5", "rate is outside of any table"),
        ('[stripe]\nrate = "x"', "[stripe] rate='x' is not a rate"),
        ("[stripe]\ncolour = 5", "[stripe] colour is unknown; use some of rate, burst"),
        ('[stripe]\nkeys = "x"', "keys is not a table of tables"),
        ('[stripe.keys."a"]\nburst = -1', "[stripe.keys.'a'] burst=-1 is not a whole number"),
        (
            '[stripe]\nrate = "5/s"\n[stripe.keys.a]\nquota = "5/day"',
            "[stripe.keys.'a'] quota='5/day' changes no",
        ),
        ('[stripe.keys.""]\nrate = "5/s"', "[stripe.keys.''] key='' is neither a key nor a beginning"),
        ('[""]\nrate = "5/s"', "the name of a table is empty; give the name of a policy"),
        (
            '[stripe.eu]\nrate = "5/s"',
            '[stripe] eu is unknown; put a name with dots in quotes, such as ["a.b"]',
        ),
        ("[stripe", "is not TOML"),
    ],
)
def test_a_file_that_is_wrong_sets_nothing(place, policy, tmp_path, text, words):
    file = tmp_path / "limits.toml"
    file.write_text(text)
    ran = shapekit("apply", file, "--store", place[1])
    assert ran.returncode == 2
    assert words in ran.stderr
    assert policy.configured() == []


def test_a_file_of_many_keys_warns_once_of_an_unknown_policy(place, tmp_path):
    file = tmp_path / "limits.toml"
    file.write_text('[strype.keys.a]\nrate = "5/s"\n[strype.keys.b]\nrate = "5/s"\n')
    ran = shapekit("apply", file, "--dry-run", "--store", place[1])
    assert ran.stderr == "shapekit: the store knows no limit named 'strype' yet; check the spelling\n"


def test_check_shows_set_limits(place, policy, tmp_path):
    file = tmp_path / "limits.toml"
    file.write_text('[stripe]\nrate = "5/s"\n\n[mail]\nrate = "1/s"\n')
    done("set", "stripe", "20/s", "--by", "ann", "--store", place[1])
    done("set", "stripe", "1/s", "--key", "acme", "--by", "bob", "--store", place[1])
    page = done("check", file, "--store", place[1])
    assert "  an operator has set: rate 20/s, by ann\n" in page
    assert "  an operator has set for the key 'acme': rate 1/s, by bob\n" in page
    assert "an operator" not in done("check", file)


def test_an_ended_setting_stays_in_its_file_and_is_not_applied(place, policy, tmp_path):
    file = tmp_path / "limits.toml"
    file.write_text('[stripe]\nrate = "30/s"\n[stripe.keys.gold]\nrate = "20/s"\nuntil = 5\n')
    done("set", "stripe", "10/s", "--key", "gold", "--store", place[1])
    ran = shapekit("apply", file, "--store", place[1])
    assert ran.returncode == 0
    assert ran.stderr == f"shapekit: {file} [stripe.keys.'gold'] ended at Thu 1970-01-01 00:00:05 UTC\n"
    [left] = read_json(place, "settings", "stripe")
    assert (left["key"], left["rate"]) == (None, "30/s")


def test_check_shows_set_limits_of_a_policy_whose_name_differs_from_its_table(place, policy, tmp_path):
    file = tmp_path / "limits.toml"
    file.write_text('[payments]\nrate = "5/s"\nname = "stripe"\n\n[stripe]\nrate = "1/s"\nname = "mail"\n')
    done("set", "stripe", "20/s", "--by", "ann", "--store", place[1])
    payments, mail = json.loads(done("check", file, "--store", place[1], "--json"))["tables"]
    assert payments["means"][-1] == "an operator has set: rate 20/s, by ann"
    assert not any("an operator" in line for line in mail["means"])


def test_a_setting_until_the_last_date_is_shown(place, policy):
    last = 253_402_300_799
    policy.configure("20/s", until=last)
    assert "Fri 9999-12-31 23:59:59" in done("settings", "--store", place[1])
    assert [one["until"] for one in read_json(place, "settings")] == [last]
    with pytest.raises(ConfigError, match="is not an instant"):
        policy.configure("20/s", until=last + 1)


def test_stored_text_does_not_control_the_terminal(place, policy, tmp_path):
    done("set", "stripe", "20/s", "--reason", "\x1b[2Jsale", "--by", "ann\x1b[1m", "--store", place[1])
    file = tmp_path / "limits.toml"
    file.write_text('[stripe]\nrate = "5/s"\n')
    for page in (done("settings", "--store", place[1]), done("check", file, "--store", place[1])):
        assert r"ann\x1b[1m" in page
        assert "\x1b" not in page

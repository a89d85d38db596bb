"""Keys are never regenerated, never readable by others, and never shown.

Who is held out: a share of units, by their keys and the project's alone.
"""

import hmac
import shutil

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from support.lives import PRICE, TABLE
from support.preferences import dump
from support.releases import make_release

import labelguard as lg
from labelguard.errors import KeyProblem
from labelguard.keys.keyring import KeyRing
from labelguard.keys.prf import Splits
from labelguard.report import overview
from labelguard.report.doctor import check_installation


@pytest.fixture
def project(used_project):
    """A project with one release."""
    return used_project


def refuses(project, match):
    """New labels are refused, twice, without a trace in the ledger."""
    charged = dump(project.state)["counters"]
    for _ in range(2):
        with pytest.raises(KeyProblem, match=match):
            make_release(TABLE, **PRICE, project=project)
    assert dump(project.state)["counters"] == charged
    assert not all(check.ok for check in check_installation(project.state))


def test_the_key_of_another_project_is_refused(project, tmp_path):
    other = lg.init(tmp_path / "other")
    shutil.copy(other.keys / "project.key", project.keys / "project.key")
    refuses(project, "is not the one the ledger .* was made with")


def test_a_lost_project_key_stops_the_project(project):
    (project.keys / "project.key").unlink()
    refuses(project, "project.key is missing; restore it from a backup")
    assert not (project.keys / "project.key").exists()


@pytest.mark.parametrize("content", [b"labelguard project key v1\nshort", b"x" * 58])
def test_a_damaged_project_key_is_refused(content, project):
    (project.keys / "project.key").write_bytes(content)
    refuses(project, "damaged")


@pytest.mark.parametrize("mode", [0o640, 0o604])
def test_a_key_that_others_can_read_is_refused(mode, project):
    (project.keys / "project.key").chmod(mode)
    refuses(project, f"key is readable by others \\(mode {mode:o}\\); chmod 600 it")


def test_keys_and_private_maps_are_for_their_owner_only(project):
    for path in (project.state, project.keys, project.private_maps, project.quarantine):
        assert path.stat().st_mode & 0o777 == 0o700, path
    assert (project.keys / "project.key").stat().st_mode & 0o777 == 0o600
    for private in project.private_maps.iterdir():
        assert private.stat().st_mode & 0o777 == 0o700


def test_a_project_key_is_never_replaced(project):
    with pytest.raises(KeyProblem, match="never regenerated"):
        KeyRing.create(project.keys)


def test_keys_may_live_elsewhere(tmp_path, monkeypatch):
    vault = tmp_path / "vault"
    monkeypatch.setenv("LABELGUARD_KEYS", str(vault))
    project = lg.init(tmp_path / "project")
    make_release(TABLE, **PRICE, project=project)
    assert sorted(path.name for path in vault.iterdir()) == ["project.key"]
    assert not (project.state / "keys").exists()
    monkeypatch.delenv("LABELGUARD_KEYS")
    with pytest.raises(KeyProblem, match="set LABELGUARD_KEYS"):
        overview.read_budget(project.state)


def test_a_project_does_not_adopt_the_key_of_another(tmp_path, monkeypatch):
    monkeypatch.setenv("LABELGUARD_KEYS", str(tmp_path / "vault"))
    lg.init(tmp_path / "one")
    with pytest.raises(KeyProblem, match="the same coins"):
        lg.init(tmp_path / "two")


def test_pseudonyms_depend_on_the_key_the_namespace_and_the_id(tmp_path):
    one, two = KeyRing.create(tmp_path / "1"), KeyRing.create(tmp_path / "2")
    seen = {
        ring.hash_labelers(namespace, [labeler]).tobytes()
        for ring in (one, two)
        for namespace, labeler in (("a", "bc"), ("ab", "c"), ("a", "b"), ("c", "b"), ("", "abc"))
    }
    assert len(seen) == 10


def test_a_key_ring_shows_nothing(tmp_path):
    ring = KeyRing.create(tmp_path)
    assert repr(ring) == "KeyRing(…)"
    assert len(ring.key_fingerprint()) == 32
    secret = (tmp_path / "project.key").read_bytes()[-32:]
    assert ring.key_fingerprint() not in secret.hex()


UNITS = np.random.default_rng(0).integers(0, 2**63, (100_000, 2)).astype(np.uint64)


@pytest.fixture
def keys(tmp_path):
    return KeyRing.create(tmp_path / "keys")


@pytest.mark.parametrize("share", [0.1, 0.3, 0.5])
def test_about_a_share_of_units_is_held_out_and_everybody_is_in_one_part(share, keys):
    held_out = keys.splits(share).is_in(UNITS, "held-out")
    assert (held_out != keys.splits(share).is_in(UNITS, "training")).all()
    # Five standard errors: fails falsely once in 10^6.
    assert abs(held_out.mean() - share) < 5 * np.sqrt(share * (1 - share) / len(UNITS))


def test_nobody_is_held_out_of_no_share(keys):
    assert not keys.splits(0.0).is_in(UNITS, "held-out").any()
    assert keys.splits(0.0).is_in(UNITS, "training").all()
    assert keys.splits(0.5).is_in(UNITS[:0], "held-out").shape == (0,)


def test_a_part_is_each_units_own_whoever_else_is_there(keys):
    parts = keys.splits(0.3)
    held_out = parts.is_in(UNITS, "held-out")
    some = np.random.default_rng(1).permutation(len(UNITS))[:1000]
    assert (parts.is_in(UNITS[some], "held-out") == held_out[some]).all()


def test_parts_of_two_projects_are_independent(keys, tmp_path):
    other = KeyRing.create(tmp_path / "other")
    one, two = (ring.splits(0.5).is_in(UNITS, "held-out") for ring in (keys, other))
    assert abs((one == two).mean() - 0.5) < 5 * 0.5 / np.sqrt(len(UNITS))


def test_a_larger_share_keeps_who_was_held_out(keys):
    few, more = (keys.splits(share).is_in(UNITS, "held-out") for share in (0.1, 0.4))
    assert (few <= more).all()


def test_parts_show_no_key(keys):
    assert repr(keys.splits(0.1)) == "Splits(share=0.1)"
    assert isinstance(keys.splits(0.1), Splits)


def test_the_draw_is_as_the_format_says(keys):
    """MAC of one block: AES-256 of the unit under HMAC-SHA256(project key, name of the purpose)."""
    secret = keys._secret
    key = hmac.digest(secret, b"labelguard/key/1/held-out", "sha256")
    encrypted = Cipher(algorithms.AES(key), modes.ECB()).encryptor()
    some = UNITS[:200]
    first = [
        int.from_bytes(
            encrypted.update(int(hi).to_bytes(8, "big") + int(lo).to_bytes(8, "big"))[:8]
        )
        for hi, lo in some
    ]
    expected = [word < 0.25 * 2**64 for word in first]
    assert keys.splits(0.25).is_in(some, "held-out").tolist() == expected

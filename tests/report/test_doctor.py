"""The doctor tells each fault once."""

from labelguard.report.doctor import examine


def test_one_fault_is_told_once(lived):
    assert all(one.ok for one in examine(lived))
    (lived.keys / "project.key").unlink()
    found = {one.name: one.detail for one in examine(lived) if not one.ok}
    assert "project.key" in found.pop("keys")
    assert found == dict.fromkeys(
        ("ledger", "private maps", "ingested answers"), "not looked at: see keys"
    )

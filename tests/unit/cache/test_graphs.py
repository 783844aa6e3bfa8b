"""The folder of compiled graphs, and the counts of what became of looking them up."""

from __future__ import annotations

from polyfuse.cache.graphs import GraphCounts, GraphFolder, count, graph_counts, reset_graph_counts


def test_an_entry_is_held_until_its_key_is_dropped(tmp_path):
    folder = GraphFolder(tmp_path)
    assert not folder.holds("key")
    for name, text in (("one", "123"), ("two", "45")):
        (folder.path / "key").mkdir(parents=True, exist_ok=True)
        (folder.path / "key" / name).write_text(text)
    (folder.path / "empty").mkdir()
    assert folder.holds("key") and not folder.holds("empty")
    folder.drop("key")
    folder.drop("key")
    assert not folder.holds("key")


def test_a_folder_that_is_none_holds_nothing(tmp_path):
    (tmp_path / "compiled").write_text("in the way")
    folder = GraphFolder(tmp_path)
    folder.drop("key")
    folder.mend("key", str)
    assert not folder.holds("key")


def test_damaged_entries_are_removed(tmp_path):
    folder = GraphFolder(tmp_path)
    (folder.path / "key").mkdir(parents=True)
    for name in ("good", "bad", ".being-written"):
        (folder.path / "key" / name).write_text("good")
    (folder.path / "key" / "folder").mkdir()
    folder.mend("key", bytes.decode)
    assert sorted(path.name for path in (folder.path / "key").iterdir()) == [
        ".being-written",
        "folder",
        "good",
    ]


def test_counts():
    reset_graph_counts()
    for event, reason in (("hit", ""), ("miss", ""), ("miss", ""), ("bypass", "large"), ("error", "")):
        count(event, reason)
    assert graph_counts() == GraphCounts(1, 2, {"large": 1}, 1)
    reset_graph_counts()
    assert graph_counts() == GraphCounts()

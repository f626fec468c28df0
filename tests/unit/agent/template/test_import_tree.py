"""Which modules are left out of preloading, and what is imported in place of them."""

from typing import TypeAlias

from drumbeat.agent.workers.template.differences import import_tree
from drumbeat.agent.workers.template.differences.import_tree import ImportTree

Imports: TypeAlias = "dict[str, Imports]"

READER = "app.ranks"
APP: Imports = {
    "torch": {"torch.nn": {}},
    "app": {
        "heavy": {"heavy.data": {"numpy": {}}},
        "app.models": {"nets": {}, READER: {}},
    },
}


def imported(tree: ImportTree, modules: Imports) -> ImportTree:
    for name, inner in modules.items():
        tree.begin(name)
        if name == READER:
            tree.leave_out(tree.loading, "it read RANK")
        imported(tree, inner)
        tree.end(is_done=True)
    return tree


def test_a_module_is_left_out_with_all_that_were_importing_it() -> None:
    tree = imported(ImportTree(), APP)
    assert tree.has_grown
    assert tree.left_out == ["app"]
    assert tree.reasons == "it read RANK"


def test_everything_else_is_imported_by_the_fewest_names_and_what_is_needed_comes_first() -> None:
    tree = imported(ImportTree(), APP)
    assert tree.roots() == ["torch", "heavy", "nets"]


def test_what_belongs_to_a_package_that_is_left_out_is_left_out_too() -> None:
    tree = ImportTree(["app"])
    assert tree.is_left_out("app.other.part")
    assert not tree.is_left_out("apple")
    tree.leave_out(["app.more"], "it is imported again")
    assert not tree.has_grown


def test_what_imports_a_module_that_is_left_out_is_found_by_the_next_process() -> None:
    tree = imported(ImportTree(["app"]), {"torch": {}, "user": {"user.parts": {"app": {}}}})
    assert tree.has_grown
    assert tree.left_out == ["app", "user"]
    assert not imported(ImportTree(tree.left_out), {"torch": {}}).has_grown


def test_an_import_that_failed_is_not_tried_again() -> None:
    tree = ImportTree()
    tree.begin("missing")
    tree.end(is_done=False)
    tree.leave_out(["user"], "importing user failed")
    assert tree.roots() == []


def test_a_module_is_named_once_as_a_cause() -> None:
    tree = ImportTree()
    for name in ("RANK", "LOCAL_RANK"):
        tree.leave_out(["a", "b"], f"b read {name}")
    tree.leave_out(["a"], "a started a thread")
    assert tree.reasons == "b read RANK; a started a thread"


def test_names_that_do_not_fit_into_a_variable_are_not_handed_on() -> None:
    tree = ImportTree()
    name = "x" * 100
    for number in range(import_tree.ROOTS_CHARACTERS_MAX // 100 + 10):
        tree.begin(f"{name[:-4]}{number:04}")
        tree.end(is_done=True)
    assert len(tree.roots()) == import_tree.ROOTS_CHARACTERS_MAX // 100

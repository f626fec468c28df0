"""Pure. Why there is no way into a coordinator."""

HOW_TO_GET_IN = (
    "`coordinator token create --role join` on the coordinator's host prints a token; "
    "give it in a file with --token-file, or as DRUMBEAT_TOKEN"
)


class AccessProblem(Exception):
    """A sentence that names what is wrong, what to do about it, and whether trying again helps.

    It has no secret in it. ``is_final``: as long as nothing is changed by hand, trying again
    gives the same; a command ends with exit code 2 then, else with 3.
    """

    def __init__(self, text: str, hint: str = "", *, is_final: bool = True) -> None:
        super().__init__(text)
        self.text, self.hint, self.is_final = text, hint, is_final

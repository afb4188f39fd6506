"""The errors of fusescope.

* `UserError`: something the user can mend (a file, an option, a missing package). It is printed as one line.
* `CompileError` (in `fusescope.profiler.build`): TensorRT refused, crashed or hung; a `UserError` with the log's tail.

Everything else that is raised is a defect of fusescope and ends in a traceback.
"""


class UserError(Exception):
    """What went wrong, where, and what to do, in one line.

    Args:
        what: What is wrong, as a clause without a full stop.
        where: The file, node, tensor or option that it is wrong in.
        remedy: What the user can do about it, as an imperative clause.
    """

    def __init__(self, what: str, *, where: object = None, remedy: str = "") -> None:
        self.what = what
        self.where = None if where is None else str(where)
        self.remedy = remedy
        prefix = f"{self.where}: " if self.where else ""
        suffix = f"; {remedy}" if remedy else ""
        super().__init__(" ".join(f"{prefix}{what}{suffix}".split()))

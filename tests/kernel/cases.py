"""The list of cases. A case is a function of one machine, or of two that reach each other; its name is its test's."""

CASES = {}


class Case:
    def __init__(self, name, function, machines, limit_s, alters):
        self.name = name
        self.function = function
        self.machines = machines
        self.limit_s = limit_s
        self.alters = alters  # changes the machine, or switches it off: for guests only


def add(name, function, *, machines, limit_s=120, alters=False):
    CASES[name] = Case(name, function, machines, limit_s, alters)


def case(**properties):
    """Decorator: the function is a case of its name."""

    def decorate(function):
        add(function.__name__, function, **properties)
        return function

    return decorate

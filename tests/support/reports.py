"""Reports in tests: a name that is markup of every kind, and a section by its id."""

HOSTILE = "<script>alert(1)</script>|`![x](https://e.example)`$x$ \u202eabc\x1b[31m\n# ]]>{{7*7}}"


def section(document, name):
    [found] = [one for one in document.sections if one.id == name]
    return found

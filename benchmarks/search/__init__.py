"""How many trials each searcher needs, on published tables, emulated machines and this one."""

"""The report that people look at: facts in sections, and three ways to write them down."""

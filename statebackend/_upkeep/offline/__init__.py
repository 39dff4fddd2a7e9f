"""Changes to a stopped job from outside: `offline_commit` commits them, each other module is one kind of change."""

"""Rule packs, hardware and model facts. Data only: `muhmod.rulebook` reads it."""

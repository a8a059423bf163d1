"""How much energy the machine takes, where it shows that. Imports nothing of ours."""

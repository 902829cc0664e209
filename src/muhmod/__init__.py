"""muhmod: AST codemods for the tuning literals of vLLM and its kin."""

__version__ = "0.1.0"

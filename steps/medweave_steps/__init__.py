"""medweave's step programs: commands that read files and write files. No StreamFlow here."""

__version__ = "0.1.0"

"""medweave's step programs: commands that read files and write files. No StreamFlow here."""

from medweave_core import __version__ as __version__

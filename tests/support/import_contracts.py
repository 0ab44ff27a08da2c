"""A contract of import-linter: outside a package, only a list of its modules is imported."""

from __future__ import annotations

import grimp
from importlinter import Contract, ContractCheck, fields, output


class PublicModules(Contract):
    """The modules of a package that other packages import are exactly those of a list.

    Options:
        package: the package.
        importers: packages to which the list applies; the package itself is free.
        public: modules of the package.
    """

    type_name = "public_modules"

    package = fields.StringField()
    importers = fields.ListField(subfield=fields.StringField())
    public = fields.ListField(subfield=fields.StringField())

    def check(self, graph: grimp.ImportGraph, verbose: bool) -> ContractCheck:
        """Return the imports of other modules, and the modules of the list that nothing imports."""
        inside = graph.find_descendants(self.package) | {self.package}
        importers = {module for root in self.importers for module in graph.find_descendants(root) | {root}}
        imports = sorted(
            (importer, module)
            for importer in importers
            for module in graph.find_modules_directly_imported_by(importer) & inside
        )
        public = set(self.public)
        private = [pair for pair in imports if pair[1] not in public]
        unused = sorted(public - {module for _, module in imports})
        return ContractCheck(kept=not private and not unused, metadata={"private": private, "unused": unused})

    def render_broken_contract(self, check: ContractCheck) -> None:
        """Print what breaks the contract."""
        for importer, module in check.metadata["private"]:
            output.print_error(f"{importer} imports {module}, which is not public.")
        for module in check.metadata["unused"]:
            output.print_error(f"{module} is listed as public, and nothing imports it.")

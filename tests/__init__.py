"""The suite, layer by layer; see CONTRIBUTING.md."""

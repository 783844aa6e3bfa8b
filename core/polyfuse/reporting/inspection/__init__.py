"""What tests and notebooks look at: generated code (`generated`), and scopes (`scopes`)."""

"""What libraries with closed lists of backends need: a module each, which does nothing until it is asked."""

"""Every operator of torch's own test database, compiled and compared with eager."""

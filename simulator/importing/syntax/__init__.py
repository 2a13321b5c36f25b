"""How are configuration files read as settings, without executing anything? One module for each syntax."""

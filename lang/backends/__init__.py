"""Where programs run besides the embedded engine: servers, ours and others'.

Each backend is an `EngineClient`, so a program does not know which one it runs on. The modules are imported
when one is first asked for: programs on the embedded engine load no HTTP client.
"""

"""The structs behind `stolon.srt.protocol`, which is where they are imported from."""

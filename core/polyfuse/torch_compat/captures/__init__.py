"""What Dynamo makes of a frame, so that it can be stored and used again without tracing the frame.

frames.py   how a frame comes here before Dynamo traces it, and what Dynamo made of it
guards.py   its guards, as a record and built again on the values of another process
"""

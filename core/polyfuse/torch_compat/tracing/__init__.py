"""Private names of torch that capturing a graph needs: Dynamo, AOTAutograd, fake tensors, symbolic shapes."""

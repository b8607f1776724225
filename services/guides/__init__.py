"""Builds the grammar that holds a model to what its client was promised: valid calls of the tools that it may call,
the strict tools' schemas, the grammars of freeform tools, and the form of the final answer.

The grammar is Lark in llguidance's dialect, which the transformers engine, vLLM and TensorRT-LLM take. No IO, no clock,
no logging.
"""

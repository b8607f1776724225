"""Builds the grammar that makes a model keep the promises of a request: valid calls of the allowed
tools, schemas of strict tools, grammars of freeform tools, and the format of the final answer.

The grammar is Lark in llguidance's dialect, which the transformers engine, vLLM and TensorRT-LLM
accept. No IO, no clock, no logging.
"""

"""What becomes of the fields of the SDKs' request types that change nothing, and which types are
refused whole. The names of the betas' types are those of the APIs."""

IDLE: dict[str, dict[str, str]] = {
    "messages": {
        "allowed_callers": (
            "MemoryTool20250818Param ToolBash20241022Param ToolBash20250124Param ToolParam "
            "ToolTextEditor20241022Param ToolTextEditor20250124Param "
            "ToolTextEditor20250429Param ToolTextEditor20250728Param"
        ),
        "betas": "MessageCountTokensParams MessageCreateParamsStreaming",
        "bill_to": "BillingPolicyParam",
        "cited_text": (
            "CitationCharLocationParam CitationContentBlockLocationParam "
            "CitationPageLocationParam CitationSearchResultLocationParam "
            "CitationWebSearchResultLocationParam"
        ),
        "defer_loading": (
            "MemoryTool20250818Param ToolBash20241022Param ToolBash20250124Param ToolParam "
            "ToolTextEditor20241022Param ToolTextEditor20250124Param "
            "ToolTextEditor20250429Param ToolTextEditor20250728Param"
        ),
        "document_index": (
            "CitationCharLocationParam CitationContentBlockLocationParam CitationPageLocationParam"
        ),
        "document_title": (
            "CitationCharLocationParam CitationContentBlockLocationParam CitationPageLocationParam"
        ),
        "eager_input_streaming": "ToolParam",
        "encrypted_content": (
            "AdvisorRedactedResultBlockParam CompactionBlockParam WebSearchResultBlockParam"
        ),
        "encrypted_index": "CitationWebSearchResultLocationParam",
        "encrypted_stdout": "EncryptedCodeExecutionResultBlockParam",
        "end_block_index": "CitationContentBlockLocationParam CitationSearchResultLocationParam",
        "end_char_index": "CitationCharLocationParam",
        "end_page_number": "CitationPageLocationParam",
        "id": "MCPToolUseBlockParam ServerToolUseBlockParam",
        "inference_geo": "MessageCreateParamsStreaming",
        "input_examples": (
            "MemoryTool20250818Param ToolBash20241022Param ToolBash20250124Param "
            "ToolTextEditor20241022Param ToolTextEditor20250124Param "
            "ToolTextEditor20250429Param ToolTextEditor20250728Param"
        ),
        "is_error": "RequestMCPToolResultBlockParam",
        "max_characters": "ToolTextEditor20250728Param",
        "max_tokens": "FallbackParam",
        "mcp_server_name": "MCPToolListingBlockParam",
        "mode": "FallbackCreditTokenParam",
        "model": "FallbackInfoParam FallbackParam",
        "name": "ToolChangeMCPToolReferenceParam",
        "page_age": "WebSearchResultBlockParam",
        "prefix_mismatch_behavior": "ThinkingBlockBindingParam",
        "remaining": "TokenTaskBudgetParam",
        "search_result_index": "CitationSearchResultLocationParam",
        "server_name": (
            "MCPToolUseBlockParam ToolChangeMCPToolReferenceParam "
            "ToolChangeMCPToolsetReferenceParam"
        ),
        "service_tier": "MessageCreateParamsStreaming",
        "signature": "CompactionBlockParam",
        "source": "CitationSearchResultLocationParam",
        "speed": "FallbackParam MessageCountTokensParams MessageCreateParamsStreaming",
        "start_block_index": "CitationContentBlockLocationParam CitationSearchResultLocationParam",
        "start_char_index": "CitationCharLocationParam",
        "start_page_number": "CitationPageLocationParam",
        "title": "CitationSearchResultLocationParam CitationWebSearchResultLocationParam",
        "token": "FallbackCreditTokenParam",
        "tool_id": "ServerToolCaller20260120Param ServerToolCallerParam",
        "tool_use_id": (
            "AdvisorToolResultBlockParam BashCodeExecutionToolResultBlockParam "
            "CodeExecutionToolResultBlockParam RequestMCPToolResultBlockParam "
            "TextEditorCodeExecutionToolResultBlockParam ToolSearchToolResultBlockParam "
            "WebFetchToolResultBlockParam WebSearchToolResultBlockParam"
        ),
        "toolset_name": "ToolResultBlockParam ToolUseBlockParam",
        "total": "TokenTaskBudgetParam",
        "trigger": "FallbackBlockParam",
        "url": "CitationWebSearchResultLocationParam",
        "user_profile_id": "MessageCountTokensParams MessageCreateParamsStreaming",
        "workspace_id": "MessageCountTokensParams MessageCreateParamsStreaming",
    },
    "chat": {
        "description": "JSONSchema",
        "detail": "ImageURL",
        "file_id": "FileFile",
        "format": "ChatCompletionAudioParam",
        "id": "VoiceID",
        "include_obfuscation": "ChatCompletionStreamOptionsParam",
        "metadata": "CompletionCreateParamsStreaming",
        "mode": "PromptCacheOptions",
        "prompt_cache_retention": "CompletionCreateParamsStreaming",
        "safety_identifier": "CompletionCreateParamsStreaming",
        "ttl": "FilePromptCacheBreakpoint PromptCacheBreakpoint",
        "user": "CompletionCreateParamsStreaming",
    },
    "completions": {
        "include_obfuscation": "ChatCompletionStreamOptionsParam",
        "user": "CompletionCreateParamsStreaming",
    },
    "responses": {
        "agent_name": (
            "AdditionalToolsAgent Agent AgentMessageAgent ApplyPatchCallAgent "
            "ApplyPatchCallOutputAgent ComputerCallOutputAgent FunctionCallOutputAgent "
            "ImageGenerationCallAgent LocalShellCallAgent LocalShellCallOutputAgent "
            "McpApprovalRequestAgent McpApprovalResponseAgent McpCallAgent McpListToolsAgent "
            "MessageAgent ProgramAgent ProgramOutputAgent ShellCallAgent ShellCallOutputAgent "
            "ToolSearchCallAgent"
        ),
        "allowed_callers": (
            "ApplyPatchToolParam CustomToolParam FunctionShellToolParam FunctionToolParam "
            "ToolFunction"
        ),
        "annotations": "McpListToolsTool",
        "approval_request_id": "McpApprovalResponse McpCall",
        "approve": "McpApprovalResponse",
        "arguments": "McpApprovalRequest ToolSearchCall",
        "async": (
            "CustomToolParam FunctionToolParam ResponseCustomToolCallParam "
            "ResponseFunctionToolCallParam ToolFunction"
        ),
        "attributes": "Result",
        "background": "ImageGenerationCall",
        "betas": "InputTokenCountParams ResponseCompactParams ResponseCreateParamsStreaming",
        "bytes": "Logprob LogprobTopLogprob",
        "call_id": "ComputerCallOutput Program ProgramOutput ResponseComputerToolCallParam",
        "caller_id": (
            "ApplyPatchCallCallerProgram ApplyPatchCallOutputCallerProgram CallerProgram "
            "FunctionCallOutputCallerProgram ShellCallCallerProgram "
            "ShellCallOutputCallerProgram"
        ),
        "code": "ComputerCallOutputAcknowledgedSafetyCheck PendingSafetyCheck",
        "completion_window": "BackgroundOptions",
        "container_id": (
            "AnnotationContainerFileCitation ContainerReferenceParam "
            "ResponseCodeInterpreterToolCallParam"
        ),
        "context_compression": "Image",
        "continuation_id": "BackgroundOptions",
        "cyber": "AccessPrograms",
        "defer_loading": "CustomToolParam FunctionToolParam ToolFunction",
        "description": (
            "LocalSkillParam McpListToolsTool ResponseFormatTextJSONSchemaConfigParam "
            "ToolSearchToolParam"
        ),
        "detail": (
            "ResponseInputFileContentParam ResponseInputFileParam "
            "ResponseInputImageContentParam ResponseInputImageParam"
        ),
        "end_index": "AnnotationContainerFileCitation AnnotationURLCitation",
        "error": "McpListTools",
        "execution": "ResponseToolSearchOutputItemParamParam ToolSearchCall",
        "file_id": (
            "AnnotationContainerFileCitation AnnotationFileCitation AnnotationFilePath "
            "ResponseComputerToolCallOutputScreenshotParam ResponseInputFileContentParam "
            "ResponseInputFileParam ResponseInputImageContentParam ResponseInputImageParam "
            "Result"
        ),
        "filename": "AnnotationContainerFileCitation AnnotationFileCitation",
        "fingerprint": "Program",
        "id": (
            "AdditionalTools AgentMessage ApplyPatchCallOutput ComputerCallOutput "
            "ComputerCallOutputAcknowledgedSafetyCheck FunctionCallOutput ImageGenerationCall "
            "McpApprovalRequest McpApprovalResponse McpCall McpListTools PendingSafetyCheck "
            "Program ProgramOutput ResponseCodeInterpreterToolCallParam "
            "ResponseComputerToolCallParam ResponseConfigurationUpdateItemParamParam "
            "ResponseCustomToolCallOutputParam ResponseFileSearchToolCallParam "
            "ResponseFunctionWebSearchParam ResponseToolSearchOutputItemParamParam "
            "ShellCallOutput"
        ),
        "include_obfuscation": "StreamOptions",
        "index": "AnnotationFileCitation AnnotationFilePath",
        "input_schema": "McpListToolsTool",
        "input_tokens": "ImageGenerationCallSvgUsage",
        "logprob": "Logprob LogprobTopLogprob",
        "max_output_length": "ShellCallOutput",
        "message": "ComputerCallOutputAcknowledgedSafetyCheck PendingSafetyCheck",
        "metadata": "ResponseCreateParamsStreaming",
        "mode": "PromptCacheOptions Reasoning",
        "model": "ImageGenerationCallSvgUsage",
        "name": "LocalSkillParam McpApprovalRequest McpListToolsTool",
        "namespace": "FunctionCallOutput",
        "output_format": "ImageGenerationCall",
        "output_schema": "FunctionToolParam ToolFunction",
        "output_tokens": "ImageGenerationCallSvgUsage",
        "parameters": "ToolSearchToolParam",
        "path": "LocalSkillParam",
        "personality": "InputTokenCountParams",
        "phase": "EasyInputMessageParam ResponseOutputMessageParam",
        "prompt_cache_retention": "ResponseCompactParams ResponseCreateParamsStreaming",
        "quality": "ImageGenerationCall",
        "reason": "McpApprovalResponse",
        "reasoning_tokens": "ImageGenerationCallSvgUsage",
        "result": "ImageGenerationCall",
        "safety_identifier": "ResponseCreateParamsStreaming",
        "score": "Result",
        "search_content_types": "WebSearchPreviewToolParam",
        "search_context_size": "WebSearchPreviewToolParam WebSearchToolParam",
        "server_label": "McpApprovalRequest McpListTools",
        "service_tier": "ResponseCompactParams ResponseCreateParamsStreaming",
        "size": "ImageGenerationCall",
        "start_index": "AnnotationContainerFileCitation AnnotationURLCitation",
        "status": (
            "ApplyPatchCall ComputerCallOutput FunctionCallOutput ImageGenerationCall "
            "LocalShellCall LocalShellCallOutput McpCall Message ProgramOutput "
            "ResponseCodeInterpreterToolCallParam ResponseComputerToolCallParam "
            "ResponseFileSearchToolCallParam ResponseFunctionToolCallParam "
            "ResponseFunctionWebSearchParam ResponseOutputMessageParam "
            "ResponseReasoningItemParam ResponseToolSearchOutputItemParamParam ShellCall "
            "ShellCallOutput ToolSearchCall"
        ),
        "title": "AnnotationURLCitation",
        "token": "Logprob LogprobTopLogprob",
        "total_tokens": "ImageGenerationCallSvgUsage",
        "ttl": "PromptCacheBreakpoint",
        "type": "ImageGenerationCallError WebSearchPreviewToolParam WebSearchToolParam",
        "url": "AnnotationURLCitation",
        "user": "ResponseCreateParamsStreaming",
    },
}
"""The types of each member that changes nothing, by API. The docs name all of these members."""
REFUSED: dict[str, str] = {
    "messages": (
        "BrowserCloseTabConfigParam BrowserDoubleClickConfigParam BrowserFileUploadConfigParam "
        "BrowserFindConfigParam BrowserFormInputConfigParam BrowserGetPageTextConfigParam "
        "BrowserHoldKeyConfigParam BrowserHoverConfigParam BrowserJavascriptExecConfigParam "
        "BrowserKeyConfigParam BrowserLeftClickConfigParam BrowserLeftClickDragConfigParam "
        "BrowserLeftMouseDownConfigParam BrowserLeftMouseUpConfigParam "
        "BrowserListTabsConfigParam BrowserMiddleClickConfigParam BrowserMouseMoveConfigParam "
        "BrowserNavigateConfigParam BrowserNewTabConfigParam BrowserReadConsoleConfigParam "
        "BrowserReadNetworkConfigParam BrowserReadPageConfigParam BrowserRightClickConfigParam "
        "BrowserScreenshotConfigParam BrowserScrollConfigParam BrowserScrollToConfigParam "
        "BrowserSwitchTabConfigParam BrowserToolset20260801Param BrowserToolsetConfigsParam "
        "BrowserTripleClickConfigParam BrowserTypeConfigParam BrowserWaitConfigParam "
        "BrowserZoomConfigParam CompactionConfigParam ComputerCursorPositionConfigParam "
        "ComputerDoubleClickConfigParam ComputerHoldKeyConfigParam ComputerKeyConfigParam "
        "ComputerLeftClickConfigParam ComputerLeftClickDragConfigParam "
        "ComputerLeftMouseDownConfigParam ComputerLeftMouseUpConfigParam "
        "ComputerMiddleClickConfigParam ComputerMouseMoveConfigParam "
        "ComputerRightClickConfigParam ComputerScreenshotConfigParam ComputerScrollConfigParam "
        "ComputerToolset20260801Param ComputerToolsetConfigsParam "
        "ComputerTripleClickConfigParam ComputerTypeConfigParam ComputerWaitConfigParam "
        "ComputerZoomConfigParam ContainerUploadBlockParam FileDocumentSourceParam "
        "FileImageSourceParam RequestMCPServerToolConfigurationParam "
        "RequestMCPServerURLDefinitionParam ThreadContinueParams ThreadCreateParams "
        "ToolComputerUse20241022Param ToolComputerUse20250124Param ToolComputerUse20251124Param"
    ),
    "chat": "Audio",
    "completions": "",
    "responses": (
        "CompactionTrigger CompactionTriggerAgent ItemReference ItemReferenceAgent "
        "ResponseCompactionItemParamParam ResponseConversationParamParam ResponsePromptParam "
        "ToolChoiceBetaSpecificProgrammaticToolCallingParam ToolChoiceMcpParam "
        "ToolChoiceSpecificProgrammaticToolCallingParam ToolChoiceTypesParam"
    ),
}
"""The types with values that are refused, by API."""

"""The fields of the SDKs' request types that have no case in the `CASES` of the APIs.

`ACCEPTED`: fields of which every value of the SDK's type is accepted; the API's page says what it
does. `WHOLE`: types that get one treatment, whatever their fields:

    ignored     without effect
    text        text of the history
    noted       left out, and named in a header
    refused     a 400
    items       the items of Responses, of which each field has its place in `test_frontend_responses_fields`

The names of the beta's types are those of the API: both are one here.
"""

ACCEPTED: dict[str, dict[str, str]] = {
    "messages": {
        "AllThinkingTurnsParam": "type",
        "AssistantMessageParam": "role",
        "Base64ImageSourceParam": "type",
        "Base64PDFSourceParam": "type",
        "ClearToolUses20250919EditParam": "clear_tool_inputs exclude_tools trigger",
        "Compact20260112EditParam": "instructions pause_after_compaction",
        "CompactionBlockParam": "cache_control encrypted_content signature tool_changes type",
        "ContainerParams": "id skills",
        "ContainerUploadBlockParam": "cache_control type",
        "ContentBlockSourceParam": "content type",
        "DocumentBlockParam": "cache_control context source title type",
        "FallbackBlockParam": "from to trigger type",
        "FileDocumentSourceParam": "type",
        "FileImageSourceParam": "type",
        "ImageBlockParam": "cache_control type",
        "InputSchemaTyped": "properties required type",
        "InputTokensClearAtLeastParam": "type value",
        "InputTokensTriggerParam": "type value",
        "MemoryTool20250818Param": "allowed_callers cache_control defer_loading input_examples name strict type",
        "MessageCreateParamsStreaming": (
            "betas context_management metadata model output_config stream thinking tool_choice tools "
            "user_profile_id workspace_id"
        ),
        "OutputConfigParam": "format task_budget",
        "PlainTextSourceParam": "data media_type type",
        "RedactedThinkingBlockParam": "type",
        "RequestDocumentBlockParam": "cache_control citations context source title type",
        "RequestToolAdditionBlockParam": "cache_control tool type",
        "RequestToolRemovalBlockParam": "cache_control tool type",
        "SearchResultBlockParam": "cache_control citations content source title type",
        "SkillParams": "skill_id type version",
        "SystemMessageOutputConfigParam": "effort",
        "SystemMessageParam": "output_config role",
        "TextBlockParam": "type",
        "ThinkingBlockParam": "type",
        "ThinkingConfigAdaptiveParam": "block_binding display",
        "ThinkingConfigBetweenToolsParam": "type",
        "ThinkingConfigDisabledParam": "type",
        "ThinkingConfigEnabledParam": "block_binding",
        "ThinkingTurnsParam": "type value",
        "TokenTaskBudgetParam": "remaining type",
        "ToolBash20241022Param": "allowed_callers cache_control defer_loading input_examples name strict type",
        "ToolBash20250124Param": "allowed_callers cache_control defer_loading input_examples name strict type",
        "ToolChangeToolDefinitionParam": "definition type",
        "ToolChangeToolReferenceParam": "name type",
        "ToolChoiceAnyParam": "disable_parallel_tool_use",
        "ToolChoiceAutoParam": "disable_parallel_tool_use type",
        "ToolChoiceNoneParam": "type",
        "ToolChoiceToolParam": "disable_parallel_tool_use",
        "ToolParam": "eager_input_streaming input_examples",
        "ToolReferenceBlockParam": "cache_control type",
        "ToolResultBlockParam": "cache_control is_error toolset_name type",
        "ToolTextEditor20241022Param": "allowed_callers cache_control defer_loading input_examples name strict type",
        "ToolTextEditor20250124Param": "allowed_callers cache_control defer_loading input_examples name strict type",
        "ToolTextEditor20250429Param": "allowed_callers cache_control defer_loading input_examples name strict type",
        "ToolTextEditor20250728Param": (
            "allowed_callers cache_control defer_loading input_examples max_characters name strict type"
        ),
        "ToolUseBlockParam": "cache_control caller toolset_name type",
        "ToolUsesKeepParam": "type value",
        "ToolUsesTriggerParam": "type value",
        "URLImageSourceParam": "type",
        "URLPDFSourceParam": "type url",
    },
    "chat": {
        "ChatCompletionAllowedToolChoiceParam": "allowed_tools type",
        "ChatCompletionAllowedToolsParam": "mode",
        "ChatCompletionAssistantMessageParam": "function_call name refusal role",
        "ChatCompletionContentPartImageParam": "image_url prompt_cache_breakpoint type",
        "ChatCompletionContentPartInputAudioParam": "input_audio prompt_cache_breakpoint type",
        "ChatCompletionContentPartRefusalParam": "refusal type",
        "ChatCompletionContentPartTextParam": "prompt_cache_breakpoint text",
        "ChatCompletionCustomToolParam": "custom type",
        "ChatCompletionDeveloperMessageParam": "content name role",
        "ChatCompletionFunctionCallOptionParam": "name",
        "ChatCompletionFunctionMessageParam": "content role",
        "ChatCompletionFunctionToolParam": "function type",
        "ChatCompletionMessageCustomToolCallParam": "custom id type",
        "ChatCompletionMessageFunctionToolCallParam": "function type",
        "ChatCompletionNamedToolChoiceCustomParam": "custom type",
        "ChatCompletionNamedToolChoiceParam": "type",
        "ChatCompletionStreamOptionsParam": "include_obfuscation include_usage",
        "ChatCompletionSystemMessageParam": "name role",
        "ChatCompletionToolMessageParam": "role",
        "CompletionCreateParamsStreaming": (
            "audio logprobs model prediction prompt_cache_options response_format stream"
        ),
        "Custom": "description format input name",
        "CustomFormatGrammar": "grammar type",
        "CustomFormatGrammarGrammar": "syntax",
        "CustomFormatText": "type",
        "File": "file prompt_cache_breakpoint type",
        "FileFile": "filename",
        "Function": "arguments description name parameters",
        "FunctionCall": "arguments name",
        "ImageURL": "detail",
        "InputAudio": "data",
        "JSONSchema": "strict",
        "ResponseFormatText": "type",
    },
    "responses": {
        "ApplyPatchToolParam": "allowed_callers type",
        "BackgroundOptions": "completion_window continuation_id",
        "ContainerAutoParam": "file_ids memory_limit network_policy skills type",
        "ContainerNetworkPolicyAllowlistParam": "allowed_domains domain_secrets type",
        "ContainerNetworkPolicyDisabledParam": "type",
        "ContainerNetworkPolicyDomainSecretParam": "domain name value",
        "ContainerReferenceParam": "container_id type",
        "CustomToolParam": "allowed_callers async defer_loading description format type",
        "FunctionShellToolParam": "allowed_callers environment type",
        "FunctionToolParam": "allowed_callers async defer_loading description output_schema type",
        "Grammar": "type",
        "InlineSkillParam": "description name source type",
        "InlineSkillSourceParam": "data media_type type",
        "LocalEnvironmentParam": "skills type",
        "LocalShell": "type",
        "LocalSkillParam": "description name path",
        "NamespaceToolParam": "description name tools type",
        "PromptCacheOptions": "comparison_response_id mode prewarm ttl",
        "Reasoning": "generate_summary",
        "ResponseCreateParamsStreaming": (
            "access_programs background_options context_management image instructions model parallel_tool_calls "
            "prompt_cache_options reasoning store stream text"
        ),
        "ResponseFormatText": "type",
        "ResponseFormatTextJSONSchemaConfigParam": "strict type",
        "ResponseTextConfigParam": "format",
        "SkillReferenceParam": "skill_id type version",
        "Text": "type",
        "ToolChoiceAllowedParam": "mode tools type",
        "ToolChoiceApplyPatchParam": "type",
        "ToolChoiceCustomParam": "name type",
        "ToolChoiceFunctionParam": "type",
        "ToolChoiceShellParam": "type",
        "ToolFunction": "allowed_callers async defer_loading description name output_schema parameters strict type",
        "ToolSearchToolParam": "description execution parameters type",
    },
}

_KINDS: dict[str, dict[str, str]] = {
    "messages": {
        "ignored": (
            "BillingPolicyParam CacheControlEphemeralParam CitationCharLocationParam "
            "CitationContentBlockLocationParam CitationPageLocationParam CitationSearchResultLocationParam "
            "CitationWebSearchResultLocationParam CitationsConfigParam CitationsConfigParamParam DiagnosticsParam "
            "DirectCallerParam FallbackCreditTokenParam FallbackInfoParam FallbackParam ImageTransformationsParam "
            "ServerToolCaller20260120Param ServerToolCallerParam ToolChangeMCPToolReferenceParam "
            "ToolChangeMCPToolsetReferenceParam"
        ),
        "text": (
            "AdvisorToolResultBlockParam BashCodeExecutionToolResultBlockParam BrowserStateBlockParam "
            "CodeExecutionToolResultBlockParam MCPToolListingBlockParam MCPToolUseBlockParam "
            "RequestMCPToolResultBlockParam ServerToolUseBlockParam TextEditorCodeExecutionToolResultBlockParam "
            "ToolSearchToolResultBlockParam WebFetchToolResultBlockParam WebSearchToolResultBlockParam"
        ),
        "noted": (
            "AdvisorTool20260301Param CodeExecutionTool20250522Param CodeExecutionTool20250825Param "
            "CodeExecutionTool20260120Param CodeExecutionTool20260521Param MCPToolsetParam "
            "ToolSearchToolBm25_20251119Param ToolSearchToolRegex20251119Param WebFetchTool20250910Param "
            "WebFetchTool20260209Param WebFetchTool20260309Param WebFetchTool20260318Param "
            "WebSearchTool20250305Param WebSearchTool20260209Param WebSearchTool20260318Param"
        ),
        "refused": (
            "BrowserToolset20260801Param CompactionConfigParam ComputerToolset20260801Param "
            "RequestMCPServerURLDefinitionParam ThreadContinueParams ThreadCreateParams "
            "ToolComputerUse20241022Param ToolComputerUse20250124Param ToolComputerUse20251124Param"
        ),
    },
    "chat": {
        "ignored": (
            "ChatCompletionAudioParam ChatCompletionPredictionContentParam FilePromptCacheBreakpoint "
            "PromptCacheBreakpoint PromptCacheOptions"
        ),
        "noted": ("Moderation WebSearchOptions"),
        "refused": ("Audio"),
    },
    "responses": {
        "ignored": ("AccessPrograms Image StreamOptions"),
        "items": (
            "AdditionalTools ApplyPatchCall ApplyPatchCallOutput CompactionTrigger ComputerCallOutput "
            "EasyInputMessageParam FunctionCallOutput ImageGenerationCall ItemReference LocalShellCall "
            "LocalShellCallOutput McpApprovalRequest McpApprovalResponse McpCall McpListTools Message Program "
            "ProgramOutput ResponseCodeInterpreterToolCallParam ResponseCompactionItemParamParam "
            "ResponseComputerToolCallParam ResponseConfigurationUpdateItemParamParam "
            "ResponseCustomToolCallOutputParam ResponseCustomToolCallParam ResponseFileSearchToolCallParam "
            "ResponseFunctionToolCallParam ResponseFunctionWebSearchParam ResponseOutputMessageParam "
            "ResponseReasoningItemParam ResponseToolSearchOutputItemParamParam ShellCall ShellCallOutput "
            "ToolSearchCall"
        ),
        "noted": (
            "CodeInterpreter ComputerToolParam ComputerUsePreviewToolParam FileSearchToolParam ImageGeneration "
            "Mcp Moderation ProgrammaticToolCalling WebSearchPreviewToolParam WebSearchToolParam"
        ),
        "refused": (
            "ResponseConversationParamParam ResponsePromptParam ToolChoiceMcpParam "
            "ToolChoiceSpecificProgrammaticToolCallingParam"
        ),
    },
}
WHOLE = {
    api: {name: kind for kind, names in kinds.items() for name in names.split()}
    for api, kinds in _KINDS.items()
}

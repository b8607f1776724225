"""Code that several APIs share: decoding of requests, their tools and content, answers, errors, the
OpenAPI document."""

"""The operations of `/rollouts`: they make rollouts, end them, give them rewards and return their
samples. The agents' own requests come below `/rollouts/ID/v1`, as ordinary requests."""

from typing import Literal

from aiohttp import web
from msgspec import Raw

from schemas.errors import Forbidden, Invalid, NotFound
from services.frontend.apis.rollouts import wire
from services.frontend.apis.rollouts.samples import FORMATS, SampleSender
from services.frontend.apis.shared.api import Api, ApiSetup, Operation, Query, json_response
from services.frontend.apis.shared.client import Headers
from services.frontend.apis.shared.decode import PlainBody
from services.frontend.apis.shared.errors import SHARED
from services.frontend.apis.shared.http_answer import read_request
from services.frontend.http.auth import Caller
from services.frontend.http.request_context import REQUEST_CONTEXT
from services.frontend.rollouts.rollouts import Rollouts
from services.frontend.rollouts.view import RolloutView
from services.rollouts.rollout import Rewards, Rollout
from services.rollouts.sample_lines import LastLine, MissingTurn, RolloutSample
from services.runtime.config.frontend import FrontendConfig

PATH = "/rollouts"
MAX_BODY_BYTES = 64 * 1024
_ROLLOUT = f"{PATH}/{{id}}"
_ID = "A rollout's id."

_SAMPLES = (
    Query("follow", {"type": "boolean"}, "Send each turn as it ends, until the rollout ends."),
    Query("format", {"enum": ["trl"]}, "The form that this trainer reads."),
)

_ROLLOUT_BODY = PlainBody(wire.RolloutBody)
_REWARD_BODY = PlainBody(wire.RewardBody)


class RolloutRoutes:
    """The handlers."""

    def __init__(self, setup: ApiSetup, rollouts: Rollouts) -> None:
        self._rollouts = rollouts
        self._admission = setup.turns.admission
        self._config = setup.config

    async def create(self, http: web.Request) -> web.Response:
        """`POST /rollouts`: a new rollout."""
        body = await read_request(http, MAX_BODY_BYTES, _parse_rollout)
        caller = _trainer(http)
        caller.limiter.count()
        model = body.model or self._only_model(caller)
        if model:
            self._admission.resolve(model, caller)
        rollout = Rollout(
            id="",
            created=0.0,
            tenant=caller.tenant,
            key=caller.key.digest.hex() if caller.key is not None else "",
            model=model,
            sampling=body.sampling.as_sampling(),
            limits=body.limits,
            weights=body.weights,
            group=body.group,
            metadata=bytes(body.metadata),
        )
        return self._answer(http, await self._rollouts.make(rollout))

    async def retrieve(self, http: web.Request) -> web.Response:
        """`GET /rollouts/{id}`: its state."""
        return self._answer(http, await self._find(http))

    async def finish(self, http: web.Request) -> web.Response:
        """`POST /rollouts/{id}/finish`: it takes no more turns; open ones go on to their end."""
        view = await self._find(http)
        await self._rollouts.end(view, "finished")
        return self._answer(http, view)

    async def abort(self, http: web.Request) -> web.Response:
        """`POST /rollouts/{id}/abort`: it takes no more turns, and open ones are cancelled."""
        view = await self._find(http)
        await self._rollouts.end(view, "aborted")
        return self._answer(http, view)

    async def restart(self, http: web.Request) -> web.Response:
        """`POST /rollouts/{id}/restart`: it begins again, without its turns so far."""
        view = await self._find(http)
        await self._rollouts.restart(view)
        return self._answer(http, view)

    async def reward(self, http: web.Request) -> web.Response:
        """`PUT /rollouts/{id}/reward`: the reward of the rollout and of turns, in place of earlier
        ones."""
        body = await read_request(http, MAX_BODY_BYTES, _REWARD_BODY.parse)
        view = await self._find(http)
        await self._rollouts.reward(view, Rewards(reward=body.reward, turns=body.turns))
        return self._answer(http, view)

    async def samples(self, http: web.Request) -> web.StreamResponse:
        """`GET /rollouts/{id}/samples`: its samples as lines of JSON."""
        view = await self._find(http)
        format = http.query.get("format", "")
        if format not in FORMATS:
            raise Invalid(f"format: {format} is not one of: trl", param="format")
        url = f"{_origin(http)}{PATH}/{view.rollout.id}"
        sender = SampleSender(http, self._rollouts, view, url)
        if http.query.get("follow", "").lower() not in ("true", "1"):
            return await sender.send_all(format)
        if format:
            raise Invalid("format: only whole samples have another form", param="format")
        return await sender.follow()

    async def image(self, http: web.Request) -> web.Response:
        """`GET /rollouts/{id}/images/{hash}`: the data of an image in its prompts."""
        view = await self._find(http)
        hash = http.match_info["hash"]
        if not view.has_image(hash):
            raise NotFound("The rollout has no image with this hash.")
        data = await self._rollouts.store.read_image(hash)
        return web.Response(body=data, content_type="application/octet-stream")

    async def delete(self, http: web.Request) -> web.Response:
        """`DELETE /rollouts/{id}`: it and its samples are gone."""
        view = await self._find(http)
        await self._rollouts.delete(view)
        return json_response(wire.DeletedRollout(view.rollout.id))

    def _answer(self, http: web.Request, view: RolloutView) -> web.Response:
        missing = self._rollouts.missing_turns(view)
        return json_response(_document(view, _origin(http), missing))

    def _only_model(self, caller: Caller) -> str:
        """The model that the caller may use, if there is one; "" if there are several."""
        names = [card.served_name for card in self._admission.models(caller) if not card.adapter]
        return names[0] if len(names) == 1 else ""

    async def _find(self, http: web.Request) -> RolloutView:
        """The rollout that a path names. Raises NotFound, Forbidden."""
        return await self._rollouts.find_own(http.match_info["id"], _trainer(http))


def _trainer(http: web.Request) -> Caller:
    """The caller, who must have a key of the server."""
    caller = http[REQUEST_CONTEXT].caller
    if caller.rollout is not None:
        raise Forbidden("A rollout's id is a key for its agent, not for its trainer.", "rollout")
    return caller


def _parse_rollout(body: bytes, headers: Headers) -> wire.RolloutBody:
    parsed = _ROLLOUT_BODY.parse(body, headers)
    if not bytes(parsed.metadata).startswith(b"{"):
        raise Invalid("metadata: an object is expected", param="metadata")
    return parsed


def _origin(http: web.Request) -> str:
    """The address that the request was sent to. Its host may be malformed."""
    return f"{http.scheme}://{http.host}"


def _document(view: RolloutView, origin: str, missing: list[MissingTurn]) -> wire.RolloutDocument:
    rollout = view.rollout
    base_url = f"{origin}{PATH}/{rollout.id}"
    return wire.RolloutDocument(
        id=rollout.id,
        object="rollout",
        status=view.state.status,
        reason=view.state.reason or None,
        created=rollout.created,
        ended=view.state.ended,
        run=view.state.run,
        base_urls=wire.BaseUrls(base_url, f"{base_url}/v1"),
        model=rollout.model or None,
        sampling=wire.RolloutSampling.of(rollout.sampling),
        limits=rollout.limits,
        weights=rollout.weights,
        group=rollout.group,
        metadata=Raw(rollout.metadata),
        turns=len(view.turns_with_tokens),
        open_turns=len([turn for turn in missing if turn.why == "running"]),
        missing=missing,
        output_tokens=view.output_tokens,
        weights_versions=view.versions,
        reward=view.rewards.reward,
        turn_rewards=view.rewards.turns,
    )


def _add_routes(setup: ApiSetup) -> None:
    assert setup.rollouts is not None, "the API is enabled with their store"
    routes = RolloutRoutes(setup, setup.rollouts)
    router = setup.app.router
    router.add_post(PATH, routes.create)
    router.add_get(_ROLLOUT, routes.retrieve, allow_head=False)
    router.add_delete(_ROLLOUT, routes.delete)
    router.add_post(f"{_ROLLOUT}/finish", routes.finish)
    router.add_post(f"{_ROLLOUT}/abort", routes.abort)
    router.add_post(f"{_ROLLOUT}/restart", routes.restart)
    router.add_put(f"{_ROLLOUT}/reward", routes.reward)
    router.add_get(f"{_ROLLOUT}/samples", routes.samples, allow_head=False)
    router.add_get(f"{_ROLLOUT}/images/{{hash}}", routes.image, allow_head=False)


def _is_enabled(config: FrontendConfig) -> bool:
    return config.rollout_store_mb > 0


def _operation(path: str, summary: str, method: Literal["get", "post", "put"]) -> Operation:
    """An operation on a rollout that returns it."""
    return Operation(path, summary, method, answer=wire.RolloutDocument, id=_ID)


API = Api(
    name="Rollouts",
    title="Rollouts",
    errors=SHARED,
    operations=(
        Operation(
            PATH,
            "Make a rollout",
            body=wire.RolloutBody,
            example={"model": "your-model", "sampling": {"temperature": 1.0}, "group": "task-7"},
            answer=wire.RolloutDocument,
        ),
        _operation(_ROLLOUT, "Retrieve a rollout", "get"),
        Operation(_ROLLOUT, "Delete a rollout", "delete", answer=wire.DeletedRollout, id=_ID),
        _operation(f"{_ROLLOUT}/finish", "Finish a rollout", "post"),
        _operation(f"{_ROLLOUT}/abort", "Abort a rollout", "post"),
        _operation(f"{_ROLLOUT}/restart", "Begin a rollout again", "post"),
        Operation(
            f"{_ROLLOUT}/reward",
            "Set the reward of a rollout",
            "put",
            body=wire.RewardBody,
            example={"reward": 1.0},
            answer=wire.RolloutDocument,
            id=_ID,
        ),
        Operation(
            f"{_ROLLOUT}/samples",
            "Read the samples of a rollout",
            "get",
            lines=(RolloutSample, LastLine),
            query=_SAMPLES,
            id=_ID,
        ),
        Operation(
            f"{_ROLLOUT}/images/{{hash}}",
            "Read an image of a rollout",
            "get",
            binary=True,
            id=_ID,
        ),
    ),
    add_routes=_add_routes,
    enabled=_is_enabled,
)

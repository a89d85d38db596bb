"""A Hugging Face Hub on this machine: the calls of its HTTP interface that publishing and loading
use, on repositories in memory. It keeps what it was sent, byte for byte, and takes nothing else
for a file than what has the SHA-256 that was announced.
"""

import base64
import contextlib
import hashlib
import json
import threading
from dataclasses import dataclass, field

import uvicorn
import yaml
from starlette.applications import Starlette
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

TOKEN = "hf_of_the_test"


@dataclass
class Repository:
    """The files of a repository, and one SHA for each commit."""

    private: bool
    files: dict[str, bytes] = field(default_factory=lambda: {".gitattributes": b"* text=auto\n"})
    commits: list[str] = field(default_factory=lambda: [hashlib.sha1(b"first").hexdigest()])
    titles: list[str] = field(default_factory=list)


@dataclass
class Hub:
    """Repositories by kind and id, uploads by SHA-256; calls in `failing` end in HTTP 500."""

    repositories: dict[tuple[str, str], Repository] = field(default_factory=dict)
    uploads: dict[str, bytes] = field(default_factory=dict)
    failing: set[str] = field(default_factory=set)
    calls: list[str] = field(default_factory=list)
    url: str = ""

    def dataset(self, name):
        """A data set's repository."""
        return self.repositories["dataset", name]

    def published(self, name, kind="dataset"):
        """The files of a repository but what the Hub puts there itself."""
        files = dict(self.repositories[kind, name].files)
        files.pop(".gitattributes", None)
        return files

    def download(self, name, directory, kind="dataset"):
        """Write the same files into a new directory, and return it."""
        for file, data in self.published(name, kind).items():
            (directory / file).parent.mkdir(parents=True, exist_ok=True)
            (directory / file).write_bytes(data)
        return directory

    def forget(self):
        """Begin anew."""
        for held in (self.repositories, self.uploads, self.failing, self.calls):
            held.clear()


class Refused(Exception):
    """An answer that is an error."""

    def __init__(self, status, code, text):
        super().__init__(text)
        self.response = JSONResponse({"error": text}, status, {"X-Error-Code": code})


@contextlib.contextmanager
def running():
    """A hub that answers on a free port until the context is left."""
    hub = Hub()
    config = uvicorn.Config(_App(hub).routes(), port=0, log_level="error", lifespan="off")
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, daemon=True)
    started = threading.Event()
    startup = server.startup

    async def announce(sockets=None):
        await startup(sockets)
        started.set()

    server.startup = announce
    thread.start()
    assert started.wait(30)
    port = server.servers[0].sockets[0].getsockname()[1]
    hub.url = f"http://127.0.0.1:{port}"
    try:
        yield hub
    finally:
        server.should_exit = True
        thread.join(10)


def point_to(hub, patch, tmp_path):
    """Let this process' client take `hub` for the Hub, and keep nothing of it elsewhere."""
    from huggingface_hub import constants

    patch.setenv("HF_TOKEN", TOKEN)
    template = constants.HUGGINGFACE_CO_URL_TEMPLATE.replace(constants.ENDPOINT, hub.url)
    patch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
    patch.setattr(constants, "ENDPOINT", hub.url)
    patch.setattr(constants, "HF_URL_HOSTS", constants.HF_URL_HOSTS | {"127.0.0.1"})
    patch.setattr(constants, "HF_HUB_OFFLINE", False)
    patch.setattr(constants, "HF_HUB_DISABLE_XET", True)  # a storage of its own behind the Hub
    patch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))


def environment(hub, tmp_path):
    """The variables by which another process takes `hub` for the Hub."""
    return {
        "HF_ENDPOINT": hub.url,
        "HF_TOKEN": TOKEN,
        "HF_HUB_OFFLINE": "0",
        "HF_HUB_DISABLE_XET": "1",
        "HF_HOME": str(tmp_path / "hf"),
    }


class _App:
    def __init__(self, hub):
        self.hub = hub

    def routes(self):
        """The application."""
        api = "/api/{kind}s/{org}/{name}"
        routes = [
            ("POST", "/api/repos/create", self.create),
            ("POST", "/api/validate-yaml", self.validate),
            ("GET", api, self.info),
            ("GET", f"{api}/revision/{{revision}}", self.info),
            ("GET", f"{api}/tree/{{revision}}", self.tree),
            ("GET", f"{api}/tree/{{revision}}/{{path:path}}", self.tree),
            ("POST", f"{api}/paths-info/{{revision}}", self.paths),
            ("POST", f"{api}/preupload/{{revision}}", self.preupload),
            ("POST", f"{api}/commit/{{revision}}", self.commit),
            ("PUT", "/lfs/{oid}", self.upload),
            ("POST", "/datasets/{org}/{name}.git/info/lfs/objects/batch", self.batch),
            ("POST", "/{org}/{name}.git/info/lfs/objects/batch", self.batch),
            ("GET", "/datasets/{org}/{name}/resolve/{revision}/{path:path}", self.resolve),
            ("GET", "/{org}/{name}/resolve/{revision}/{path:path}", self.resolve),
        ]
        return Starlette(routes=[self._route(*one) for one in routes])

    def _route(self, method, path, call):
        async def answer(request):
            self.hub.calls.append(call.__name__)
            if call.__name__ in self.hub.failing:
                return JSONResponse({"error": "out of order"}, 500)
            try:
                return await call(request)
            except Refused as error:
                return error.response

        return Route(path, answer, methods=[method])

    def _check_token(self, request):
        if request.headers.get("authorization") != f"Bearer {TOKEN}":
            raise Refused(401, "", "Invalid username or password.")

    def _repository(self, request):
        where = request.path_params
        kind = where.get("kind") or ("dataset" if "/datasets/" in request.url.path else "model")
        repository = self.hub.repositories.get((kind, f"{where['org']}/{where['name']}"))
        if repository is None or repository.private:
            self._check_token(request)
        if repository is None:
            raise Refused(404, "RepoNotFound", "Repository not found")
        return repository

    async def create(self, request):
        self._check_token(request)
        asked = await request.json()
        name = f"{asked['organization']}/{asked['name']}"
        if (asked["type"], name) in self.hub.repositories:
            status = 409
        else:
            private = asked["visibility"] == "private"
            self.hub.repositories[asked["type"], name] = Repository(private)
            status = 200
        below = "datasets/" if asked["type"] == "dataset" else ""
        return JSONResponse({"url": f"{self.hub.url}/{below}{name}", "name": name}, status)

    async def validate(self, request):
        """The front matter must be YAML, a mapping of the Hub's own types."""
        asked = await request.json()
        try:
            _, matter, _ = asked["content"].split("---\n", 2)
            metadata = yaml.safe_load(matter)
            assert all(isinstance(tag, str) for tag in metadata["tags"])
            for config in metadata.get("configs", ()):
                assert config["config_name"] and config["data_files"]
            for name in ("library_name", "pipeline_tag", "base_model"):
                assert isinstance(metadata.get(name, ""), str)
        except (ValueError, TypeError, KeyError, AssertionError, yaml.YAMLError) as error:
            return JSONResponse({"errors": [{"message": str(error)}], "warnings": []}, 400)
        return JSONResponse({"errors": [], "warnings": []})

    async def info(self, request):
        repository = self._repository(request)
        where = request.path_params
        told = {
            "id": f"{where['org']}/{where['name']}",
            "sha": repository.commits[-1],
            "private": repository.private,
            "siblings": [{"rfilename": name} for name in repository.files],
            "tags": [],
            "downloads": 0,
            "likes": 0,
        }
        return JSONResponse(told)

    async def tree(self, request):
        repository = self._repository(request)
        below = request.path_params.get("path", "")
        entries = [
            _entry(name, data)
            for name, data in repository.files.items()
            if not below or name.startswith(f"{below}/")
        ]
        if below and not entries:
            raise Refused(404, "EntryNotFound", "no such folder")
        return JSONResponse(entries)

    async def paths(self, request):
        repository = self._repository(request)
        if request.headers["content-type"] == "application/json":
            names = (await request.json())["paths"]
        else:
            names = (await request.form()).getlist("paths")
        found = [_entry(n, repository.files[n]) for n in names if n in repository.files]
        return JSONResponse(found)

    async def preupload(self, request):
        self._check_token(request)
        repository = self._repository(request)
        files = []
        for file in (await request.json())["files"]:
            name = file["path"]
            lfs = name.endswith((".parquet", ".npz", ".safetensors", ".png"))
            told = {"path": name, "uploadMode": "lfs" if lfs else "regular", "shouldIgnore": False}
            if name in repository.files:
                told["oid"] = _oid(repository.files[name], lfs)
            files.append(told)
        return JSONResponse({"files": files})

    async def batch(self, request):
        self._check_token(request)
        self._repository(request)
        objects = []
        for wanted in (await request.json())["objects"]:
            if wanted["oid"] not in self.hub.uploads:
                wanted["actions"] = {"upload": {"href": f"{self.hub.url}/lfs/{wanted['oid']}"}}
            objects.append(wanted)
        return JSONResponse({"transfer": "basic", "objects": objects})

    async def upload(self, request):
        data = await request.body()
        if hashlib.sha256(data).hexdigest() != request.path_params["oid"]:
            raise Refused(400, "", "another content was announced")
        self.hub.uploads[request.path_params["oid"]] = data
        return Response()

    async def commit(self, request):
        self._check_token(request)
        repository = self._repository(request)
        lines = [json.loads(line) for line in (await request.body()).splitlines()]
        files = dict(repository.files)
        header = lines[0]["value"]
        if header.get("parentCommit") not in (None, repository.commits[-1]):
            raise Refused(412, "", "A commit has happened since.")
        for line in lines[1:]:
            value, name = line["value"], line["value"]["path"]
            if line["key"] == "file":
                files[name] = base64.b64decode(value["content"])
            elif line["key"] == "lfsFile":
                if value["oid"] not in self.hub.uploads:
                    raise Refused(400, "", "LFS pointer without its object")
                files[name] = self.hub.uploads[value["oid"]]
            elif line["key"] == "deletedFile":
                del files[name]
        repository.files = files
        repository.titles.append(header["summary"])
        repository.commits.append(hashlib.sha1(repr(sorted(files.items())).encode()).hexdigest())
        page = request.url.path.removeprefix("/api").rpartition("/commit/")[0]
        url = f"{self.hub.url}{page.removeprefix('/models')}/commit/{repository.commits[-1]}"
        return JSONResponse({"commitUrl": url, "commitOid": repository.commits[-1]})

    async def resolve(self, request):
        repository = self._repository(request)
        data = repository.files.get(request.path_params["path"])
        if data is None:
            raise Refused(404, "EntryNotFound", "Entry not found")
        etag = hashlib.sha256(data).hexdigest()
        headers = {"ETag": f'"{etag}"', "X-Repo-Commit": repository.commits[-1]}
        first, status = 0, 200
        if asked := request.headers.get("range"):
            begin, _, end = asked.removeprefix("bytes=").partition("-")
            first, status = int(begin), 206
            headers["Content-Range"] = f"bytes {begin}-{end or len(data) - 1}/{len(data)}"
            data = data[first : int(end) + 1 if end else None]
        return Response(data, status, headers)


def _oid(data, lfs):
    if lfs:
        return hashlib.sha256(data).hexdigest()
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


def _entry(name, data):
    entry = {"type": "file", "path": name, "size": len(data), "oid": _oid(data, False)}
    if name.endswith(".parquet"):
        entry["lfs"] = {"oid": _oid(data, True), "size": len(data), "pointerSize": 130}
    return entry

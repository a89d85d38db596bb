# labelguard for the hook and for jobs, without torch. docs/connectors.md and docs/retraining.md tell how
# to run them; examples/compose.yaml is a whole installation.
ARG PYTHON=3.13-slim-bookworm

FROM python:${PYTHON} AS build
WORKDIR /src
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY labelguard labelguard
COPY connectors connectors
COPY trainer trainer
ARG EXTRAS=argilla,jobs,label-studio,postgres,serve
RUN python -m venv /opt/labelguard \
    && /opt/labelguard/bin/pip install --no-cache-dir -c constraints.txt ".[${EXTRAS}]"

FROM python:${PYTHON}
COPY --from=build /opt/labelguard /opt/labelguard
# A volume that is new has the owner and the rights of the directory that it covers.
RUN groupadd --gid 10001 labelguard \
    && useradd --uid 10001 --gid labelguard --home-dir /project --shell /usr/sbin/nologin labelguard \
    && install -d -m 700 -o labelguard -g labelguard /project /keys
ENV PATH=/opt/labelguard/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    LABELGUARD_PROJECT=/project \
    LABELGUARD_KEYS=/keys
USER 10001:10001
WORKDIR /project
VOLUME ["/project", "/keys"]
EXPOSE 8410
HEALTHCHECK --interval=30s --timeout=5s --start-period=30s CMD ["python", "-c", \
    "from urllib.request import urlopen; urlopen('http://127.0.0.1:8410/healthz', timeout=4)"]
ENTRYPOINT ["labelguard"]
CMD ["serve", "--host", "0.0.0.0"]

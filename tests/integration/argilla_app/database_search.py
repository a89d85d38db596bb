"""A search engine for Argilla's server that answers from Argilla's own database.

In place of Elasticsearch, which takes a gigabyte and a minute: few records are searched one by one.
Import it before the application; ARGILLA_SEARCH_ENGINE=database then chooses it.
"""

from collections import Counter

from argilla_server.database import AsyncSessionLocal
from argilla_server.models import Record
from argilla_server.search_engine.base import (
    AndFilter,
    MetadataFilterScope,
    RangeFilter,
    RecordFilterScope,
    ResponseFilterScope,
    SearchEngine,
    SearchResponseItem,
    SearchResponses,
    SuggestionFilterScope,
    TermsFilter,
    TermsMetrics,
    TextQuery,
)
from sqlalchemy import select
from sqlalchemy.orm import selectinload


@SearchEngine.register(engine_name="database")
class DatabaseSearch(SearchEngine):
    @classmethod
    async def new_instance(cls):
        return cls()

    async def ping(self):
        return True

    async def info(self):
        return {"name": "database"}

    # There is no index: what would change it does nothing.

    async def _nothing(self, *_, **__):
        pass

    close = create_index = delete_index = configure_metadata_property = index_records = _nothing
    partial_record_update = delete_records = update_record_response = _nothing
    delete_record_response = update_record_suggestion = delete_record_suggestion = _nothing

    async def get_dataset_progress(self, dataset):
        counts = Counter(_text(record.status) for record in await _records(dataset.id))
        return {"total": sum(counts.values()), **counts}

    async def get_dataset_user_progress(self, dataset, user):
        counts = Counter(
            _text(response.status)
            for record in await _records(dataset.id)
            for response in record.responses
            if response.user_id == user.id
        )
        return {"total": sum(counts.values()), **counts}

    async def search(
        self,
        dataset,
        query=None,
        filter=None,  # noqa: A002 (Argilla calls it so)
        sort=None,
        offset=0,
        limit=100,
        user_id=None,
    ):
        found = await _records(dataset.id)
        if query:
            words = (query.q if isinstance(query, TextQuery) else str(query)).lower()
            found = [record for record in found if words in str(record.fields).lower()]
        if filter:
            found = [record for record in found if _matches(record, filter)]
        page = found[offset : offset + limit]
        items = [SearchResponseItem(record_id=record.id, score=1.0) for record in page]
        return SearchResponses(items=items, total=len(found))

    async def compute_metrics_for(self, metadata_property):
        return TermsMetrics(total=0)

    async def similarity_search(self, *arguments, **options):
        return SearchResponses(items=[], total=0)


async def _records(dataset_id):
    wanted = (
        select(Record)
        .where(Record.dataset_id == dataset_id)
        .order_by(Record.inserted_at.asc(), Record.id.asc())
        .options(selectinload(Record.responses), selectinload(Record.suggestions))
    )
    async with AsyncSessionLocal() as session:
        return (await session.execute(wanted)).scalars().all()


def _matches(record, wanted):
    if isinstance(wanted, AndFilter):
        return all(_matches(record, one) for one in wanted.filters)
    scope = wanted.scope
    if isinstance(scope, ResponseFilterScope) and not scope.question:
        statuses, mine = {_text(value) for value in wanted.values}, _responses(record, scope)
        return any(_text(one.status) in statuses for one in mine) or (
            "pending" in statuses and not mine
        )
    values = [value for value in _values(record, scope) if value is not None]
    if isinstance(wanted, TermsFilter):
        return bool({_text(value) for value in values} & {_text(value) for value in wanted.values})
    if isinstance(wanted, RangeFilter):
        return any(
            (wanted.ge is None or value >= wanted.ge) and (wanted.le is None or value <= wanted.le)
            for value in values
        )
    raise ValueError(wanted)


def _values(record, scope):
    if isinstance(scope, ResponseFilterScope):
        answers = [(one.values or {}).get(scope.question, {}) for one in _responses(record, scope)]
        return [answer.get("value") for answer in answers]
    if isinstance(scope, MetadataFilterScope):
        return [(record.metadata_ or {}).get(scope.metadata_property)]
    if isinstance(scope, RecordFilterScope):
        return [getattr(record, scope.property, None)]
    if isinstance(scope, SuggestionFilterScope):
        return [getattr(one, scope.property, None) for one in record.suggestions]
    raise ValueError(scope)


def _responses(record, scope):
    return [one for one in record.responses if scope.user is None or one.user_id == scope.user.id]


def _text(value):
    return str(getattr(value, "value", value))

// Each struct owns all that it points to by its private_data, and its release() deletes that. A
// consumer may move a child out of its parent, so a child owns its buffers itself.
#include "join/arrays.h"

#include <cerrno>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "verbena/apps/join.h"

namespace verbena {
namespace join_app {
namespace {

struct ArrayParts {
  std::vector<Block> blocks;
  std::vector<const void*> buffers;
  std::vector<Owned<ArrowArray>> columns;
  std::vector<ArrowArray*> children;
};

template <typename Struct, typename Parts>
void release_parts(Struct* owner) {
  owner->release = nullptr;
  delete static_cast<Parts*>(owner->private_data);
}

Owned<ArrowArray> make(uint64_t length, uint64_t nulls, std::unique_ptr<ArrayParts> parts) {
  for (const Block& block : parts->blocks) parts->buffers.push_back(block.as<const void>());
  for (Owned<ArrowArray>& column : parts->columns) parts->children.push_back(column.get());
  Owned<ArrowArray> array;
  *array.get() = {.length = static_cast<int64_t>(length),
                  .null_count = static_cast<int64_t>(nulls),
                  .offset = 0,
                  .n_buffers = static_cast<int64_t>(parts->buffers.size()),
                  .n_children = static_cast<int64_t>(parts->children.size()),
                  .buffers = parts->buffers.data(),
                  .children = parts->children.data(),
                  .dictionary = nullptr,
                  .release = release_parts<ArrowArray, ArrayParts>,
                  .private_data = parts.get()};
  static_cast<void>(parts.release());  // now the array's
  return array;
}

struct SchemaParts {
  Field field;
  std::vector<Owned<ArrowSchema>> fields;
  std::vector<ArrowSchema*> children;
};

void make_schema(Field field, const std::vector<Field>& fields, ArrowSchema* schema) {
  auto parts = std::make_unique<SchemaParts>();
  parts->field = std::move(field);
  parts->fields.resize(fields.size());
  for (size_t i = 0; i < fields.size(); ++i) {
    make_schema(fields[i], {}, parts->fields[i].get());
    parts->children.push_back(parts->fields[i].get());
  }
  *schema = {.format = parts->field.format.c_str(),
             .name = parts->field.name.c_str(),
             .metadata = nullptr,
             .flags = parts->field.nullable ? ARROW_FLAG_NULLABLE : 0,
             .n_children = static_cast<int64_t>(parts->children.size()),
             .children = parts->children.data(),
             .dictionary = nullptr,
             .release = release_parts<ArrowSchema, SchemaParts>,
             .private_data = parts.get()};
  static_cast<void>(parts.release());
}

// The batches of a stream, and how it makes its schema.
struct StreamParts {
  std::vector<Field> fields;  // or
  Owned<ArrowSchema> schema;  // that is given once
  std::vector<Owned<ArrowArray>> batches;
  size_t next = 0;
};

StreamParts& parts_of(ArrowArrayStream* stream) {
  return *static_cast<StreamParts*>(stream->private_data);
}
int next_batch(ArrowArrayStream* stream, ArrowArray* batch) {
  StreamParts& parts = parts_of(stream);
  *batch = {};
  if (parts.next < parts.batches.size()) std::swap(*batch, *parts.batches[parts.next++].get());
  return 0;
}
int schema_of_fields(ArrowArrayStream* stream, ArrowSchema* schema) {
  make_schema({.name = "", .format = "+s", .nullable = false}, parts_of(stream).fields, schema);
  return 0;
}
int schema_once(ArrowArrayStream* stream, ArrowSchema* schema) {
  StreamParts& parts = parts_of(stream);
  if (parts.schema->release == nullptr) return EINVAL;
  *schema = {};
  std::swap(*schema, *parts.schema.get());
  return 0;
}
const char* no_error(ArrowArrayStream*) { return nullptr; }

void start(std::unique_ptr<StreamParts> parts, int (*get_schema)(ArrowArrayStream*, ArrowSchema*),
           ArrowArrayStream* stream) {
  *stream = {.get_schema = get_schema,
             .get_next = next_batch,
             .get_last_error = no_error,
             .release = release_parts<ArrowArrayStream, StreamParts>,
             .private_data = parts.release()};
}

}  // namespace

Owned<ArrowArray> make_array(uint64_t length, uint64_t nulls, std::vector<Block> buffers) {
  auto parts = std::make_unique<ArrayParts>();
  parts->blocks = std::move(buffers);
  return make(length, nulls, std::move(parts));
}

Owned<ArrowArray> make_batch(uint64_t length, std::vector<Owned<ArrowArray>> columns) {
  auto parts = std::make_unique<ArrayParts>();
  parts->blocks.resize(1);  // no validity: no row is null as a whole
  parts->columns = std::move(columns);
  return make(length, 0, std::move(parts));
}

void make_stream(std::vector<Field> fields, std::vector<Owned<ArrowArray>> batches,
                 ArrowArrayStream* stream) {
  auto parts = std::make_unique<StreamParts>();
  parts->fields = std::move(fields);
  parts->batches = std::move(batches);
  start(std::move(parts), schema_of_fields, stream);
}

}  // namespace join_app

void stream_of_table(ArrowSchema* schema, ArrowArray* table, ArrowArrayStream* stream) {
  auto parts = std::make_unique<join_app::StreamParts>();
  std::swap(*parts->schema.get(), *schema);
  parts->batches.resize(1);
  std::swap(*parts->batches[0].get(), *table);
  join_app::start(std::move(parts), join_app::schema_once, stream);
}

void stream_of_columns(uint64_t rows, std::span<const PlainColumn> columns,
                       ArrowArrayStream* stream) {
  std::vector<join_app::Field> fields;
  std::vector<join_app::Owned<ArrowArray>> arrays;
  for (const PlainColumn& column : columns) {
    fields.push_back({.name = column.name, .format = column.format, .nullable = false});
    auto parts = std::make_unique<join_app::ArrayParts>();
    parts->buffers = {nullptr, column.values};
    arrays.push_back(join_app::make(rows, 0, std::move(parts)));
  }
  std::vector<join_app::Owned<ArrowArray>> batches;
  batches.push_back(join_app::make_batch(rows, std::move(arrays)));
  join_app::make_stream(std::move(fields), std::move(batches), stream);
}

}  // namespace verbena

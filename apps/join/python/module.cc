// The Python module behind verbena_join: tables come and go as capsules of the Arrow PyCapsule
// interface (https://arrow.apache.org/docs/format/CDataInterface/PyCapsuleInterface.html), which
// pyarrow, polars, DuckDB and others speak. So it needs none of them.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "verbena/apps/join.h"

namespace {

namespace py = pybind11;

constexpr char kStreamCapsule[] = "arrow_array_stream";
constexpr char kSchemaCapsule[] = "arrow_schema";
constexpr char kArrayCapsule[] = "arrow_array";

[[noreturn]] void raise(const verbena::Status& status) {
  PyObject* type = PyExc_RuntimeError;
  switch (status.code()) {
    case verbena::StatusCode::kInvalidArgument:
    case verbena::StatusCode::kProtocolViolation:
      type = PyExc_ValueError;
      break;
    case verbena::StatusCode::kLimitExceeded:
      type = PyExc_MemoryError;
      break;
    case verbena::StatusCode::kUnavailable:
      type = PyExc_OSError;
      break;
    default:
      break;
  }
  PyErr_SetString(type, status.message().c_str());
  throw py::error_already_set();
}

// A stream that is released with it, unless it was moved out.
struct Stream {
  Stream() = default;
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  ~Stream() {
    if (value.release != nullptr) value.release(&value);
  }

  ArrowArrayStream value = {};
};

template <typename Struct>
Struct* struct_in(const py::handle& capsule, const char* name) {
  auto* const value = static_cast<Struct*>(PyCapsule_GetPointer(capsule.ptr(), name));
  if (value == nullptr) throw py::error_already_set();
  return value;
}

// Takes the table's data out of the capsules that it makes.
void take_stream(const py::object& table, Stream* stream) {
  if (py::hasattr(table, "__arrow_c_stream__")) {
    const py::object capsule = table.attr("__arrow_c_stream__")();
    std::swap(stream->value, *struct_in<ArrowArrayStream>(capsule, kStreamCapsule));
  } else if (py::hasattr(table, "__arrow_c_array__")) {
    const py::tuple capsules = table.attr("__arrow_c_array__")();
    verbena::stream_of_table(struct_in<ArrowSchema>(capsules[0], kSchemaCapsule),
                             struct_in<ArrowArray>(capsules[1], kArrayCapsule), &stream->value);
  } else {
    throw py::type_error(
        "a " + py::str(py::type::of(table)).cast<std::string>() +
        " is no Arrow table: it has neither __arrow_c_stream__ nor "
        "__arrow_c_array__; give a table of pyarrow 14 or newer, polars or DuckDB");
  }
}

// The result, until it is handed out.
class Joined {
 public:
  Joined(std::unique_ptr<Stream> stream, verbena::JoinStatistics statistics)
      : stream_(std::move(stream)), statistics_(statistics) {}

  // A consumer may ask for another schema, and gets this one.
  py::object export_stream(const py::object&) {
    if (stream_ == nullptr) {
      throw py::value_error(
          "the result was handed out already; keep the table that was made of it");
    }
    PyObject* const capsule = PyCapsule_New(&stream_->value, kStreamCapsule, [](PyObject* object) {
      void* const value = PyCapsule_GetPointer(object, kStreamCapsule);
      delete reinterpret_cast<Stream*>(value);  // whose first and only member it is
    });
    if (capsule == nullptr) throw py::error_already_set();
    static_cast<void>(stream_.release());  // now the capsule's
    return py::reinterpret_steal<py::object>(capsule);
  }

  py::dict statistics() const {
    py::dict all;
    all["left_rows"] = statistics_.left_rows;
    all["right_rows"] = statistics_.right_rows;
    all["result_rows"] = statistics_.result_rows;
    all["partitions"] = statistics_.partitions;
    all["largest_partition_rows"] = statistics_.largest_partition_rows;
    all["memory_bytes"] = statistics_.memory_bytes;
    all["read_ns"] = statistics_.read_ns;
    all["partition_ns"] = statistics_.partition_ns;
    all["probe_ns"] = statistics_.probe_ns;
    return all;
  }

 private:
  std::unique_ptr<Stream> stream_;
  verbena::JoinStatistics statistics_;
};

verbena::JoinKind kind_of(const std::string& name) {
  if (name == "inner") return verbena::JoinKind::kInner;
  if (name == "left") return verbena::JoinKind::kLeft;
  if (name == "semi") return verbena::JoinKind::kSemi;
  if (name == "anti") return verbena::JoinKind::kAnti;
  throw py::value_error("there is no join '" + name + "'; choose inner, left, semi or anti");
}

std::unique_ptr<Joined> join(const py::object& left, const py::object& right,
                             const std::vector<std::pair<std::string, std::string>>& keys,
                             const std::string& how, const std::string& right_suffix,
                             uint64_t memory_limit_bytes, uint32_t threads, bool count_only) {
  verbena::JoinOptions options;
  for (const auto& [of_left, of_right] : keys) options.keys.push_back({of_left, of_right});
  options.kind = kind_of(how);
  options.right_suffix = right_suffix;
  options.memory_limit_bytes = memory_limit_bytes;
  options.threads = threads;
  Stream left_stream;
  Stream right_stream;
  take_stream(left, &left_stream);
  take_stream(right, &right_stream);
  auto result = std::make_unique<Stream>();
  const auto done = [&] {
    // Producers that are written in Python take the lock again.
    const py::gil_scoped_release unlocked;
    return verbena::join_tables(&left_stream.value, &right_stream.value, options,
                                count_only ? nullptr : &result->value);
  }();
  if (!done.ok()) raise(done.status());
  return std::make_unique<Joined>(count_only ? nullptr : std::move(result), *done);
}

}  // namespace

PYBIND11_MODULE(_join, module) {
  py::class_<Joined>(module, "Joined")
      .def("__arrow_c_stream__", &Joined::export_stream, py::arg("requested_schema") = py::none())
      .def_property_readonly("statistics", &Joined::statistics);
  module.def("join", &join);
}

// Stores in this process, each with a thread that serves it, and front-ends of them, for tests.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "log/replicas.h"
#include "src/base/runtime.h"
#include "src/device/verbs_for_test.h"
#include "verbena/apps/log.h"
#include "verbena/connection.h"

namespace verbena::log_app {

using test::must;

inline constexpr int64_t kTestTimeoutNs = 120'000'000'000;

// A front-end with the connections that it came over, which go last.
template <typename T>
struct Opened {
  std::vector<std::unique_ptr<ControlConnection>> controls;
  Result<T> result = Status(StatusCode::kInternal, "not opened");

  bool ok() const { return result.ok(); }
  const Status& status() const { return result.status(); }
  auto operator->() { return result->get(); }
};

class StoreForTest {
 public:
  StoreForTest(const test::Node& node, const JobSecret& secret, const LogStoreOptions& options)
      : store_(must(LogStore::expose(node.device, node.domain, options))),
        listener_(must(ControlListener::listen("127.0.0.1", 0, secret))) {
    thread_ = start_thread("store", [this] { serve(); });
  }
  ~StoreForTest() {
    stop_ = true;
    thread_.join();
  }
  uint16_t port() const { return listener_.port(); }

 private:
  void serve() {
    while (!stop_) {
      auto control = listener_.accept(1'000'000);
      if (control.ok()) {
        controls_.push_back(std::make_unique<ControlConnection>(std::move(*control)));
        static_cast<void>(store_->accept(*controls_.back()));
      }
      store_->maintain();
    }
  }

  std::vector<std::unique_ptr<ControlConnection>> controls_;
  std::unique_ptr<LogStore> store_;
  ControlListener listener_;
  std::atomic<bool> stop_ = false;
  Thread thread_;
};

class LogForTest {
 public:
  explicit LogForTest(uint32_t replicas = 1, LogStoreOptions options = {.capacity_bytes = 1 << 20})
      : options_(options) {
    options_.replicated = replicas > 1;
    for (uint32_t i = 0; i < replicas; ++i) add_store();
    if (replicas > 1) must(form());
  }

  const test::Node& node() const { return node_; }
  const JobSecret& secret() const { return secret_; }
  void add_store() { add_store(options_); }
  void add_store(const LogStoreOptions& options) {
    stores_.push_back(std::make_unique<StoreForTest>(node_, secret_, options));
  }
  void lose_store(size_t number) {
    stores_.erase(stores_.begin() + static_cast<ptrdiff_t>(number));
  }

  Opened<std::unique_ptr<LogWriter>> writer(LogWriterOptions options = {}) {
    options.max_batch_bytes =
        std::min<uint32_t>(options.max_batch_bytes, options_.capacity_bytes / 8);
    return open<std::unique_ptr<LogWriter>>([&](std::span<ControlConnection* const> controls) {
      return open_log_writer(node_.device, node_.domain, controls, options);
    });
  }
  Opened<std::unique_ptr<LogReader>> reader(const LogReaderOptions& options = {}) {
    return open<std::unique_ptr<LogReader>>([&](std::span<ControlConnection* const> controls) {
      return open_log_reader(node_.device, node_.domain, controls, options);
    });
  }
  Result<LogFormation> form() {
    return open<LogFormation>([&](std::span<ControlConnection* const> controls) {
             return form_log(node_.device, node_.domain, controls);
           })
        .result;
  }
  // The stores' memory, as any front-end could see and spoil it.
  Opened<std::vector<Replica>> raw(Role role = Role::kReader) {
    return open<std::vector<Replica>>([&](std::span<ControlConnection* const> controls) {
      return open_stores(node_.device, node_.domain, controls, role, {});
    });
  }

  template <typename T, typename Open>
  Opened<T> open(Open&& open) {
    Opened<T> opened;
    std::vector<ControlConnection*> controls;
    for (const auto& store : stores_) {
      opened.controls.push_back(std::make_unique<ControlConnection>(
          must(ControlConnection::connect("127.0.0.1", store->port(), secret_, kTestTimeoutNs))));
      controls.push_back(opened.controls.back().get());
    }
    opened.result = open(controls);
    return opened;
  }

 private:
  JobSecret secret_ = JobSecret::random();
  test::Node node_;
  LogStoreOptions options_;
  std::vector<std::unique_ptr<StoreForTest>> stores_;
};

// Reads until there are `count` records, or the reader fails. Nothing for so long is a failure,
// too.
inline Status read_records(LogReader& reader, size_t count, std::vector<std::string>* records) {
  Waiter waiter;
  const uint64_t begun_ns = now_ns();
  while (records->size() < count) {
    const auto read = reader.next();
    VERBENA_RETURN_IF_ERROR(read.status());
    for (const LogRecord& record : *read) records->emplace_back(record.bytes);
    read->empty() ? waiter.idle() : waiter.progress();
    if (now_ns() - begun_ns > static_cast<uint64_t>(kTestTimeoutNs)) {
      return Status(StatusCode::kTimeout, "the records do not come");
    }
  }
  return Status::ok_status();
}

}  // namespace verbena::log_app

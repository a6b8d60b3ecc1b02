// The back-end. Control path: it takes front-ends in, and makes trimmed space free.
#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "log/layout.h"
#include "log/pages.h"
#include "log/store_messages.h"
#include "verbena/apps/log.h"
#include "verbena/data_path.h"

namespace verbena {
namespace {

using log_app::Header;
using log_app::Hello;
using log_app::Layout;
using log_app::Role;
using log_app::StoreState;
using log_app::Welcome;

constexpr uint64_t kLeastCapacityBytes = uint64_t{64} << 10;
constexpr uint64_t kMostCapacityBytes = uint64_t{1} << 40;
constexpr uint32_t kMostWriters = 1024;

Status check(const LogStoreOptions& options) {
  const uint64_t capacity = options.capacity_bytes;
  if (capacity < kLeastCapacityBytes || capacity > kMostCapacityBytes ||
      !std::has_single_bit(capacity)) {
    return Status(StatusCode::kInvalidArgument, "capacity_bytes is " + std::to_string(capacity) +
                                                    "; choose a power of two, 64 KiB to 1 TiB");
  }
  if (options.max_writers < 1 || options.max_writers > kMostWriters) {
    return Status(StatusCode::kInvalidArgument,
                  "max_writers is " + std::to_string(options.max_writers) + "; choose 1 to " +
                      std::to_string(kMostWriters));
  }
  return Status::ok_status();
}

uint64_t random_number() {
  return std::stoull(JobSecret::random().text().substr(0, 16), nullptr, 16);
}

class Store final : public LogStore {
 public:
  Store(const Device& device, const ProtectionDomain& domain, const LogStoreOptions& options)
      : device_(device),
        domain_(domain),
        options_(options),
        layout_(options.capacity_bytes / log_app::kPlaceBytes, options.max_writers),
        writers_(options.max_writers, nullptr) {}

  Status prepare() {
    auto pages = log_app::Pages::allocate(layout_.region_bytes());
    VERBENA_RETURN_IF_ERROR(pages.status());
    memory_ = std::move(*pages);
    Header header{.magic = log_app::kMagic,
                  .version = log_app::kVersion,
                  .place_bytes = log_app::kPlaceBytes,
                  .places = layout_.places(),
                  .writers = options_.max_writers};
    if (!options_.replicated) {
      header.state = StoreState::kActive;
      header.log_id = random_number();
      header.epoch = 1;
      header.replicas = 1;
    }
    copy_bytes(memory_.data(), &header, sizeof(header));
    publish_word(word(log_app::kLimitAt), layout_.places());
    return expose_memory();
  }

  Status accept(ControlConnection& control) override {
    maintain();
    VERBENA_ASSIGN_OR_RETURN(
        const Hello hello,
        control.receive_value<Hello>(log_app::kHelloTag, options_.handshake_timeout_ns));
    Welcome welcome;
    const Status admitted = admit(control, hello, &welcome.writer);
    if (!admitted.ok()) welcome = Welcome::refusal(admitted);
    const Status sent = control.send_value(log_app::kWelcomeTag, welcome);
    Status status = !admitted.ok() ? admitted : sent;
    if (status.ok()) status = region_->accept(control);
    if (status.ok()) {
      front_ends_.push_back(&control);
    } else if (admitted.ok()) {
      release(control);
    }
    return status;
  }

  uint32_t maintain() override {
    if (region_ == nullptr) return 0;
    std::vector<ControlConnection*> gone;
    std::erase_if(front_ends_, [&gone](ControlConnection* control) {
      if (!control->peer_closed()) return false;
      gone.push_back(control);
      return true;
    });
    const uint32_t left = region_->remove_ended();
    // Their queue pairs are destroyed: nothing of theirs can arrive any more.
    for (const ControlConnection* control : gone) release(*control);
    free_places();
    return left;
  }

  LogStoreStatistics statistics() const override {
    const uint64_t freed = poll_word(word(log_app::kLimitAt)) - layout_.places();
    const uint64_t tail = std::max(poll_word(word(log_app::kTailAt)), freed);
    return {
        .kept_bytes = std::min(tail - freed, layout_.places()) * log_app::kPlaceBytes,
        .connections = static_cast<uint32_t>(front_ends_.size()),
        .writers = static_cast<uint32_t>(writers_.size() - std::ranges::count(writers_, nullptr))};
  }

 private:
  uint64_t* word(uint64_t offset_bytes) const {
    return reinterpret_cast<uint64_t*>(memory_.data() + offset_bytes);
  }

  Status expose_memory() {
    auto region = expose_region(device_, domain_,
                                {.memory = {memory_.data(), memory_.size_bytes()},
                                 .max_connections = options_.max_connections,
                                 .handshake_timeout_ns = options_.handshake_timeout_ns});
    VERBENA_RETURN_IF_ERROR(region.status());
    region_ = std::move(*region);
    return Status::ok_status();
  }

  Status admit(ControlConnection& control, const Hello& hello, uint32_t* writer) {
    if (hello.magic != log_app::kMagic) {
      return Status(StatusCode::kProtocolViolation,
                    "the front-end " + control.peer_name() + " does not open a log");
    }
    VERBENA_RETURN_IF_ERROR(
        log_app::check_version("the front-end " + control.peer_name(), hello.version));
    if (hello.role == Role::kFormer) return fence(control);
    if (is_forming()) {
      return Status(StatusCode::kUnavailable,
                    "the log is being formed by " + former_->peer_name() + "; try again");
    }
    if (region_ == nullptr) VERBENA_RETURN_IF_ERROR(expose_memory());
    if (hello.role != Role::kWriter) return Status::ok_status();
    const auto free = std::ranges::find(writers_, nullptr);
    if (free == writers_.end()) {
      return Status(StatusCode::kLimitExceeded,
                    "the log has " + std::to_string(writers_.size()) +
                        " writers, the most it was made for; raise max_writers of its stores");
    }
    *free = &control;
    *writer = static_cast<uint32_t>(free - writers_.begin());
    return Status::ok_status();
  }

  // Ends all connections for one that forms a log.
  Status fence(const ControlConnection& former) {
    region_.reset();
    front_ends_.clear();
    for (uint32_t i = 0; i < writers_.size(); ++i) {
      writers_[i] = nullptr;
      publish_word(word(layout_.floor_at(i)), log_app::kNoFloor);
    }
    former_ = &former;
    publish_word(word(log_app::kFormingAt), uint64_t{1});
    const Status exposed = expose_memory();
    if (!exposed.ok()) former_ = nullptr;
    return exposed;
  }

  // Takes back what admit() gave.
  void release(const ControlConnection& control) {
    if (former_ == &control) former_ = nullptr;
    const auto slot = std::ranges::find(writers_, &control);
    if (slot == writers_.end()) return;
    *slot = nullptr;
    publish_word(word(layout_.floor_at(static_cast<uint32_t>(slot - writers_.begin()))),
                 log_app::kNoFloor);
  }

  // Until form_log() has ended, or whoever called it is gone.
  bool is_forming() const {
    return former_ != nullptr && poll_word(word(log_app::kFormingAt)) != 0;
  }

  void free_places() {
    if (is_forming()) return;  // trim and limit are about to change
    // First the trim, then the floors: who reserved below the trim published a floor before.
    uint64_t until = poll_word(word(log_app::kTrimAt));
    for (uint32_t i = 0; i < writers_.size(); ++i) {
      const uint64_t floor = poll_word(word(layout_.floor_at(i)));
      if (floor != log_app::kNoFloor) until = std::min(until, floor - 1);
    }
    const uint64_t limit = poll_word(word(log_app::kLimitAt));
    const uint64_t freed = limit - layout_.places();
    if (until <= freed) return;
    // A trim may be beyond the limit, as reservations may; what is there is freed next time. So a
    // wild one cannot hold the store.
    until = std::min(until, limit);
    for (uint64_t place = freed; place < until; ++place) {
      store_word(word(layout_.word_at(place)), log_app::free_word(layout_.lap(place) + 1));
    }
    // After the words: who sees the limit finds them free.
    publish_word(word(log_app::kLimitAt), until + layout_.places());
  }

  const Device& device_;
  const ProtectionDomain& domain_;
  const LogStoreOptions options_;
  const Layout layout_;
  log_app::Pages memory_;
  std::vector<ControlConnection*> front_ends_;
  // Of each floor, whose it is.
  std::vector<const ControlConnection*> writers_;
  const ControlConnection* former_ = nullptr;
  std::unique_ptr<ExposedRegion> region_;
};

}  // namespace

Result<std::unique_ptr<LogStore>> LogStore::expose(const Device& device,
                                                   const ProtectionDomain& domain,
                                                   const LogStoreOptions& options) {
  VERBENA_RETURN_IF_ERROR(check(options));
  auto store = std::make_unique<Store>(device, domain, options);
  VERBENA_RETURN_IF_ERROR(store->prepare());
  return std::unique_ptr<LogStore>(std::move(store));
}

}  // namespace verbena

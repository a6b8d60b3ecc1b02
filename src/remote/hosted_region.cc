// The back-end's side: registers the region and takes front-ends in. All of it is control path.
#include <fmt/format.h>
#include <unistd.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "src/connect/endpoint.h"
#include "src/connect/exchange.h"
#include "src/connect/failure.h"
#include "src/memory/arena.h"
#include "src/remote/layer.h"
#include "src/remote/region_description.h"
#include "verbena/remote.h"

namespace verbena::remote {
namespace {

constexpr uint32_t kMaxConnections = 16384;

struct FrontEnd {
  explicit FrontEnd(ControlConnection& its_control)
      : control(&its_control), peer("the front-end " + its_control.peer_name()) {}

  ControlConnection* control;
  std::string peer;
  std::optional<connect::Endpoint> endpoint;
};

class HostedRegion final : public ExposedRegion {
 public:
  HostedRegion(const Device& device, const ProtectionDomain& domain,
               const ExposedRegionOptions& options)
      : device_(&device), domain_(&domain), options_(options) {}
  ~HostedRegion() override {
    for (FrontEnd& front_end : front_ends_) front_end.control->hang_up();
  }

  // Registers the memory.
  Status expose();

  Status accept(ControlConnection& control) override;
  uint32_t remove_ended() override;
  uint32_t connections() const override { return static_cast<uint32_t>(front_ends_.size()); }
  const Status& last_end() const override { return last_end_; }
  char* data() const override { return data_; }
  uint64_t size_bytes() const override { return size_bytes_; }

 private:
  unsigned remote_access() const {
    unsigned access = IBV_ACCESS_REMOTE_READ;
    if (options_.writable) access |= IBV_ACCESS_REMOTE_WRITE;
    if (options_.writable && device_->info().atomics) access |= IBV_ACCESS_REMOTE_ATOMIC;
    return access;
  }
  Status make_memory(unsigned access);
  Result<std::vector<std::byte>> prepare(FrontEnd& front_end) const;

  const Device* device_;
  const ProtectionDomain* domain_;
  const ExposedRegionOptions options_;
  std::optional<RegisteredArena> own_memory_;
  std::optional<MemoryRegion> users_memory_;
  char* data_ = nullptr;
  uint64_t size_bytes_ = 0;
  uint32_t rkey_ = 0;
  std::vector<FrontEnd> front_ends_;  // their queue pairs go before the memory
  Status last_end_;
};

Status HostedRegion::make_memory(unsigned access) {
  const auto machine_bytes =
      static_cast<uint64_t>(sysconf(_SC_PHYS_PAGES)) * static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  if (options_.size_bytes > machine_bytes) {
    return Status(StatusCode::kLimitExceeded,
                  fmt::format("a region of {} bytes is larger than the memory of this machine, {} "
                              "bytes; lower size_bytes, or spread the data over several back-ends",
                              options_.size_bytes, machine_bytes));
  }
  VERBENA_ASSIGN_OR_RETURN(
      own_memory_, RegisteredArena::create(*domain_, options_.size_bytes, access,
                                           connect::wants_huge_pages(*device_, options_.huge_pages),
                                           options_.socket));
  data_ = own_memory_->data();
  size_bytes_ = options_.size_bytes;
  rkey_ = own_memory_->rkey();
  return Status::ok_status();
}

Status HostedRegion::expose() {
  if (options_.memory.empty() == (options_.size_bytes == 0)) {
    return Status(StatusCode::kInvalidArgument,
                  "a region needs either size_bytes or memory of its user; set one of the two");
  }
  if (options_.max_connections < 1 || options_.max_connections > kMaxConnections) {
    return Status(StatusCode::kInvalidArgument,
                  fmt::format("max_connections is {}; choose 1 to {}", options_.max_connections,
                              kMaxConnections));
  }
  const auto sockets = static_cast<int>(machine_sockets().size());
  if (options_.socket < kAnySocket || options_.socket >= sockets) {
    return Status(StatusCode::kInvalidArgument,
                  fmt::format("socket is {}, and this machine has {}; choose 0 to {}, or "
                              "kAnySocket",
                              options_.socket, sockets, sockets - 1));
  }
  unsigned access = remote_access();
  if (options_.writable) access |= IBV_ACCESS_LOCAL_WRITE;
  if (options_.memory.empty()) return make_memory(access);
  VERBENA_ASSIGN_OR_RETURN(users_memory_, MemoryRegion::create(*domain_, options_.memory.data(),
                                                               options_.memory.size(), access));
  data_ = options_.memory.data();
  size_bytes_ = options_.memory.size();
  rkey_ = users_memory_->rkey();
  return Status::ok_status();
}

Result<std::vector<std::byte>> HostedRegion::prepare(FrontEnd& front_end) const {
  if (front_ends_.size() >= options_.max_connections) {
    return Status(StatusCode::kLimitExceeded,
                  fmt::format("{} front-ends are connected, and max_connections is as high; raise "
                              "it, or let one end",
                              front_ends_.size()));
  }
  connect::EndpointPlan plan;
  plan.arena_bytes = kCacheLineBytes;  // nothing is sent from here
  plan.other_access = remote_access();
  plan.send_depth_wrs = 1;
  plan.max_outstanding_reads = connect::outstanding_reads(device_->info());
  VERBENA_ASSIGN_OR_RETURN(front_end.endpoint, connect::make_endpoint(*device_, *domain_, plan));
  return encode({.role = Role::kBackEnd,
                 .address = reinterpret_cast<uint64_t>(data_),
                 .size_bytes = size_bytes_,
                 .rkey = rkey_,
                 .writable = options_.writable,
                 .atomics = device_->info().atomics});
}

Status HostedRegion::accept(ControlConnection& control) {
  remove_ended();
  FrontEnd front_end(control);
  const Result<std::vector<std::byte>> mine = prepare(front_end);
  RegionDescription theirs;
  VERBENA_RETURN_IF_ERROR(connect::join(
      control, kLayer, front_end.endpoint ? &*front_end.endpoint : nullptr, mine,
      [&theirs](WireReader& reader) { return decode(reader, Role::kBackEnd, &theirs); },
      options_.handshake_timeout_ns));
  front_ends_.push_back(std::move(front_end));
  return Status::ok_status();
}

uint32_t HostedRegion::remove_ended() {
  std::erase_if(front_ends_, [this](FrontEnd& front_end) {
    if (!front_end.control->peer_closed()) return false;
    last_end_ = connect::peer_is_gone(front_end.peer);
    front_end.control->hang_up();
    return true;
  });
  return connections();
}

}  // namespace
}  // namespace verbena::remote

namespace verbena {

Result<std::unique_ptr<ExposedRegion>> expose_region(const Device& device,
                                                     const ProtectionDomain& domain,
                                                     const ExposedRegionOptions& options) {
  auto region = std::make_unique<remote::HostedRegion>(device, domain, options);
  VERBENA_RETURN_IF_ERROR(region->expose());
  return std::unique_ptr<ExposedRegion>(std::move(region));
}

}  // namespace verbena

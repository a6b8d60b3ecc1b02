// A process with an endpoint of the provider that exchanges numbers with others: each receives each
// other one's in order, some in messages that are copied and some in long ones.
#pragma once

#include <fmt/format.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_tagged.h>

#include <array>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "src/base/runtime.h"

namespace verbena::ofi_test {

struct CloseHandle {
  template <typename Handle>
  void operator()(Handle* handle) const {
    fi_close(&handle->fid);
  }
};
template <typename Handle>
using Handed = std::unique_ptr<Handle, CloseHandle>;

// Members of a folder: each leaves its name in a file with its number.
class Exchange {
 public:
  static constexpr uint32_t kMembers = 3;

  Exchange(std::filesystem::path folder, uint32_t number)
      : folder_(std::move(folder)), me_(number) {}

  // Empty, or what went wrong.
  std::string open() {
    fi_info* const hints = fi_allocinfo();
    hints->caps = FI_TAGGED | FI_DIRECTED_RECV;
    hints->ep_attr->type = FI_EP_RDM;
    fi_info* found = nullptr;
    int error = fi_getinfo(FI_VERSION(1, 17), nullptr, nullptr, 0, hints, &found);
    fi_freeinfo(hints);
    if (error != 0) return "fi_getinfo: " + std::string(fi_strerror(-error));
    const std::unique_ptr<fi_info, decltype(&fi_freeinfo)> info(found, &fi_freeinfo);
    fi_cq_attr queue{};
    queue.format = FI_CQ_FORMAT_TAGGED;
    fi_av_attr vector{};
    if ((error =
             make(fabric_, [&](auto** it) { return fi_fabric(info->fabric_attr, it, nullptr); })) ||
        (error =
             make(domain_,
                  [&](auto** it) { return fi_domain(fabric_.get(), info.get(), it, nullptr); })) ||
        (error = make(queue_,
                      [&](auto** it) { return fi_cq_open(domain_.get(), &queue, it, nullptr); })) ||
        (error =
             make(vector_,
                  [&](auto** it) { return fi_av_open(domain_.get(), &vector, it, nullptr); })) ||
        (error = make(
             endpoint_,
             [&](auto** it) { return fi_endpoint(domain_.get(), info.get(), it, nullptr); })) ||
        (error = fi_ep_bind(endpoint_.get(), &vector_->fid, 0)) ||
        (error = fi_ep_bind(endpoint_.get(), &queue_->fid, FI_SEND | FI_RECV)) ||
        (error = fi_enable(endpoint_.get()))) {
      return "opening: " + std::string(fi_strerror(-error));
    }
    Name name{};
    size_t size_bytes = sizeof(name);
    if ((error = fi_getname(&endpoint_->fid, name.data(), &size_bytes)) != 0) return "fi_getname";
    const std::filesystem::path unfinished = file_of(me_) += ".new";
    std::ofstream(unfinished, std::ios::binary).write(name.data(), sizeof(name));
    std::filesystem::rename(unfinished, file_of(me_));
    return "";
  }
  // False: not all names are there yet.
  bool meet() {
    for (uint32_t other = 0; other < kMembers; ++other) {
      if (!std::filesystem::exists(file_of(other))) return false;
    }
    for (uint32_t other = 0; other < kMembers; ++other) {
      Name name{};
      std::ifstream(file_of(other), std::ios::binary).read(name.data(), sizeof(name));
      fi_av_insert(vector_.get(), name.data(), 1, &peers_[other].address, 0, nullptr);
    }
    return true;
  }

  // One round with all others that are not lost. Whether something happened.
  bool step() {
    bool happened = false;
    for (uint32_t other = 0; other < kMembers; ++other) {
      if (other == me_ || peers_[other].lost) continue;
      happened |= receive_next(other);
      happened |= send_next(other);
    }
    fi_cq_tagged_entry entry{};
    const ssize_t got = fi_cq_read(queue_.get(), &entry, 1);
    if (got == 1) {
      take(*static_cast<Operation*>(entry.op_context), 0);
    } else if (got == -FI_EAVAIL) {
      fi_cq_err_entry error{};
      if (fi_cq_readerr(queue_.get(), &error, 0) == 1) {
        why_ = fi_cq_strerror(queue_.get(), error.prov_errno, error.err_data, nullptr, 0);
        take(*static_cast<Operation*>(error.op_context), error.err);
      }
    } else if (got != -FI_EAGAIN) {
      ++wrong_;
    }
    return happened || got != -FI_EAGAIN;
  }

  bool is_lost(uint32_t other) const { return peers_[other].lost; }
  uint64_t received(uint32_t other) const { return peers_[other].received; }
  uint64_t outstanding(uint32_t other) const { return peers_[other].outstanding; }
  uint64_t wrong() const { return wrong_; }
  const std::string& why() const { return why_; }  // the last error's text
  std::filesystem::path end_file() const { return folder_ / "end"; }

 private:
  using Name = std::array<char, 32>;
  static constexpr size_t kLongBytes = 50'000;
  static constexpr uint64_t kAhead = 4;

  struct Operation {
    fi_context context{};  // first: what libfabric is given
    uint32_t other = 0;
    bool is_receive = false;
    bool busy = false;
    uint64_t number = 0;
    std::vector<char> memory = std::vector<char>(kLongBytes);
  };
  struct Peer {
    fi_addr_t address = FI_ADDR_UNSPEC;
    bool lost = false;
    uint64_t sent = 0;
    uint64_t posted = 0;
    uint64_t received = 0;
    uint64_t outstanding = 0;
    std::array<Operation, kAhead> sends;
    std::array<Operation, kAhead> receives;
  };

  template <typename Handle, typename Open>
  static int make(Handed<Handle>& owner, Open&& open) {
    Handle* made = nullptr;
    const int error = open(&made);
    owner.reset(made);
    return error;
  }
  std::filesystem::path file_of(uint32_t member) const {
    return folder_ / fmt::format("name{}", member);
  }

  // Whether it was posted; a peer that is refused is lost.
  bool posted(Operation& operation, ssize_t result) {
    Peer& peer = peers_[operation.other];
    if (result == -FI_EAGAIN) return false;
    if (result != 0) {
      if (result != -FI_ECONNABORTED) ++wrong_;
      peer.lost = true;
      return false;
    }
    operation.busy = true;
    ++peer.outstanding;
    return true;
  }
  bool send_next(uint32_t other) {
    Peer& peer = peers_[other];
    Operation& send = peer.sends[peer.sent % kAhead];
    if (send.busy) return false;
    send.other = other;
    memcpy(send.memory.data(), &peer.sent, sizeof(peer.sent));
    const size_t bytes = peer.sent % 16 == 15 ? kLongBytes : sizeof(peer.sent);
    if (!posted(send, fi_tsend(endpoint_.get(), send.memory.data(), bytes, nullptr, peer.address,
                               me_, &send.context))) {
      return false;
    }
    ++peer.sent;
    return true;
  }
  bool receive_next(uint32_t other) {
    Peer& peer = peers_[other];
    Operation& receive = peer.receives[peer.posted % kAhead];
    if (receive.busy) return false;
    receive.other = other;
    receive.is_receive = true;
    receive.number = peer.posted;
    if (!posted(receive, fi_trecv(endpoint_.get(), receive.memory.data(), kLongBytes, nullptr,
                                  peer.address, other, 0, &receive.context))) {
      return false;
    }
    ++peer.posted;
    return true;
  }
  void take(Operation& operation, int error) {
    Peer& peer = peers_[operation.other];
    if (!operation.busy) ++wrong_;
    operation.busy = false;
    --peer.outstanding;
    if (error == FI_ECONNABORTED) {
      peer.lost = true;
    } else if (error != 0) {
      ++wrong_;
    } else if (operation.is_receive) {
      uint64_t number = 0;
      memcpy(&number, operation.memory.data(), sizeof(number));
      if (number != operation.number) ++wrong_;
      ++peer.received;
    }
  }

  const std::filesystem::path folder_;
  const uint32_t me_;
  Handed<fid_fabric> fabric_;
  Handed<fid_domain> domain_;
  Handed<fid_cq> queue_;
  Handed<fid_av> vector_;
  std::array<Peer, kMembers> peers_;
  Handed<fid_ep> endpoint_;  // goes before the memory of its operations, and before its queue
  uint64_t wrong_ = 0;
  std::string why_;
};

}  // namespace verbena::ofi_test

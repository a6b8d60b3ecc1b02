// A front-end of a hashtable. Each pending operation is a small state machine, carried on by the
// completions of the region; layout.h says what it does and why. Control path: front_end.cc; data
// path: front_end_datapath.cc.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "hashtable/layout.h"
#include "hashtable/node_pool.h"
#include "verbena/apps/hashtable.h"
#include "verbena/remote.h"
#include "verbena/status.h"

namespace verbena::hashtable {

// The region's operations that one of the table's may have on its way: the last copy, the node and
// the compare-and-swap.
inline constexpr uint32_t kOperationsOfOne = 3;
inline constexpr uint32_t kMostPending = 256;

class FrontEnd final : public Hashtable {
 public:
  FrontEnd(RemoteRegion& region, const Layout& layout, uint32_t pending_limit);
  ~FrontEnd() override;

  HashtableReply search(std::string_view key) override { return alone(Kind::kSearch, key, {}); }
  HashtableReply insert(std::string_view key, std::string_view value) override {
    return alone(Kind::kInsert, key, value);
  }
  HashtableReply update(std::string_view key, std::string_view value) override {
    return alone(Kind::kUpdate, key, value);
  }
  HashtableReply remove(std::string_view key) override { return alone(Kind::kRemove, key, {}); }

  PostResult post_search(std::string_view key, uint64_t token) override {
    return post(Kind::kSearch, key, {}, token);
  }
  PostResult post_insert(std::string_view key, std::string_view value, uint64_t token) override {
    return post(Kind::kInsert, key, value, token);
  }
  PostResult post_update(std::string_view key, std::string_view value, uint64_t token) override {
    return post(Kind::kUpdate, key, value, token);
  }
  PostResult post_remove(std::string_view key, uint64_t token) override {
    return post(Kind::kRemove, key, {}, token);
  }
  void collect() override { collected_ = region_->collect(); }
  bool take(HashtableReply* reply) override;

  uint32_t pending() const override {
    return static_cast<uint32_t>(operations_.size() - free_.size());
  }
  uint32_t pending_limit() const override { return static_cast<uint32_t>(operations_.size()); }
  const Status& status() const override { return status_.ok() ? region_->status() : status_; }
  const Status& error() const override { return status().ok() ? *error_ : status(); }
  Status close() override;
  const HashtableStatistics& statistics() const override;

 private:
  static constexpr uint32_t kMostNodes = kMostNodesOfBucket;
  // Nodes that insertions leave to updates, which a full table should still have.
  static constexpr uint32_t kLeftToUpdates = 8;

  enum class Kind : uint8_t { kSearch, kInsert, kUpdate, kRemove };
  enum class Step : uint8_t { kReadingWord, kReadingNode, kCopying, kPublishing };

  struct Operation {
    Kind kind = Kind::kSearch;
    Step step = Step::kReadingWord;
    uint64_t token = 0;
    RemotePointer<uint64_t> bucket;
    uint32_t key_bytes = 0;
    uint32_t value_bytes = 0;
    NodePointer head;  // the bucket's word, as it was read
    NodePointer at;    // the node that is read
    uint32_t misreads = 0;
    // The nodes before the one with the key, and what comes behind it.
    uint32_t depth = 0;
    NodePointer path[kMostNodes];
    bool found = false;
    NodePointer replaced;
    NodePointer behind;
    // Nodes for what is to be published: the entry's, unless it is removed, and copies of the path.
    uint32_t taken_count = 0;
    NodePointer taken[kMostNodes + 1];
    uint32_t copied = 0;
    char* node = nullptr;  // node_bytes: header, key, value

    std::string_view key() const { return {node + sizeof(NodeHeader), key_bytes}; }
    bool writes_entry() const { return kind == Kind::kInsert || kind == Kind::kUpdate; }
    uint32_t copies() const { return found ? depth : 0; }
    uint32_t nodes() const { return copies() + (writes_entry() ? 1 : 0); }
    // What the i-th node of the path is copied to.
    NodePointer copy(uint32_t i) const {
      return taken[i + (writes_entry() ? 1 : 0)].with_length(path[i].length());
    }
    NodePointer behind_copy(uint32_t i) const { return i + 1 < depth ? copy(i + 1) : behind; }
    // What the entry's node, or the bucket, leads to.
    NodePointer rest() const { return !found ? head : depth > 0 ? copy(0) : behind; }
  };

  HashtableReply alone(Kind kind, std::string_view key, std::string_view value);
  PostResult post(Kind kind, std::string_view key, std::string_view value, uint64_t token);

  // Each carries an operation on. True: it is done, and *reply is its reply.
  bool handle(const RemoteCompletion& done, HashtableReply* reply);
  bool walk(Operation& operation, NodePointer head, HashtableReply* reply);
  bool visit(Operation& operation, NodePointer node, HashtableReply* reply);
  bool take_node(Operation& operation, const RemoteCompletion& done, HashtableReply* reply);
  bool found(Operation& operation, const Node& node, HashtableReply* reply);
  bool absent(Operation& operation, HashtableReply* reply);
  bool take_copy(Operation& operation, const RemoteCompletion& done);
  bool take_publication(Operation& operation, NodePointer before, HashtableReply* reply);
  bool finish(Operation& operation, HashtableOutcome outcome, std::string_view value,
              HashtableReply* reply);

  void read_again(Operation& operation);
  void change(Operation& operation);
  bool take_nodes(Operation& operation);
  void write(Operation& operation);
  void publish(Operation& operation);
  // Operations that wait for nodes, once there may be some.
  void resume_waiting();
  void keep_pool_filled();

  uint64_t slot(const Operation& operation) const {
    return static_cast<uint64_t>(&operation - operations_.data());
  }
  void expect(bool posted);
  bool is_fit(std::string_view key, std::string_view value);
  void refuse(Status status);
  void damaged(NodePointer node);
  void count(Kind kind);

  RemoteRegion* region_;
  const Layout layout_;
  const uint32_t pool_room_;  // for what pending operations and an exchange may give
  NodePool pool_;
  std::vector<Operation> operations_;
  std::vector<char> entries_;   // their nodes
  std::vector<uint32_t> free_;  // operations
  std::vector<uint32_t> waiting_;
  std::vector<HashtableReply> finished_;  // without a value
  std::vector<char> copy_;                // a node that is copied
  uint32_t collected_ = 0;
  bool closing_ = false;  // nothing is pending, and nodes only go back
  mutable HashtableStatistics statistics_;
  Status status_;
  Status refusal_;
  const Status full_;
  const Status crowded_;
  const Status* error_ = &refusal_;
};

}  // namespace verbena::hashtable
